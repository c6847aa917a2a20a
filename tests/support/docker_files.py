"""The steps of a Dockerfile, and the files that it copies, for tests that run them without Docker."""

import fnmatch
import re
import shutil
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def steps(dockerfile: Path, word: str) -> list:
    """Returns the arguments of each line that begins with this word, e.g. RUN."""
    return re.findall(rf"^{word} (.*)$", dockerfile.read_text(encoding="utf-8"), re.MULTILINE)


def ignored(name: str, is_top: bool) -> bool:
    """True for a file or folder that .dockerignore leaves out of `COPY .`."""
    patterns = [line for line in (ROOT / ".dockerignore").read_text("utf-8").splitlines() if line and line[0] != "#"]
    assert all("/" not in pattern.replace("**/", "", 1) and pattern[0] != "!" for pattern in patterns)
    return any(
        fnmatch.fnmatch(name, pattern.replace("**/", "", 1))
        for pattern in patterns
        if is_top or pattern.startswith("**/")
    )


def copy_context(source: Path, target: Path) -> None:
    """Copies what `COPY .` copies."""
    shutil.copytree(
        source, target, ignore=lambda place, names: [name for name in names if ignored(name, Path(place) == source)]
    )
