#!/usr/bin/env bash
# jiwer 4.0.0
# Guess: words are what white space separates, so a tab or a line break between two words changes no word error rate.
# What happened: only spaces separate. "a<tab>b" is one word, so its rate against "a b" is 1 and the other way round 2;
# a line break, a no-break space and the wide space of Chinese and Japanese texts do the same, while two spaces count as
# one. Exit code 0 as long as this is so.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q jiwer==4.0.0
cd "$folder"
venv/bin/python -W ignore - <<'PYTHON'
import importlib.metadata

import jiwer

separators = {"two spaces": "  ", "tab": "\t", "line break": "\n", "no-break space": "\u00a0", "wide space": "\u3000"}
print(
    f"jiwer {importlib.metadata.version('jiwer')}: word error rate of 'a b' against texts with another separator, and turned round"
)
found = {}
for name, separator in separators.items():
    text = f"a{separator}b"
    found[name] = jiwer.wer("a b", text), jiwer.wer(text, "a b")
    print(f"  {name:14} {found[name]}")
assert found.pop("two spaces") == (0, 0) and set(found.values()) == {(1, 2)}
PYTHON
