"""Prints each line of the package that breaks a rule of `rules`. The exit code is 1 if there is one."""

import sys
from pathlib import Path

from lint_parts.rules import check_package

if __name__ == "__main__":
    problems = check_package(Path(__file__).resolve().parents[2] / "mxtrain")
    print("\n".join(problems), end="\n" if problems else "")
    sys.exit(bool(problems))
