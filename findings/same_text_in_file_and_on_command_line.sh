#!/usr/bin/env bash
# hydra-core 1.3.8, omegaconf 2.3.1
# Guess: "x=TEXT" on the command line of Hydra sets what "x: TEXT" sets in its file.
# What happened: files are YAML 1.1 (on, yes, 1:30, 0123, 0x1f are true, true, 90, 83, 31), overrides have a grammar of
# their own, which takes all of these as strings; nan and inf are numbers on the command line and strings in a file,
# .nan and .inf the other way round. Values that the command line shows as set (time=1:30) are of another type than
# those in the file, without a message.
# Source: https://hydra.cc/docs/advanced/override_grammar/basic/ (Primitives). Exit code 0 as long as this is so.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q hydra-core==1.3.8 omegaconf==2.3.1
cd "$folder"
venv/bin/python -W ignore - <<'PYTHON'
import pathlib

import hydra
import omegaconf

texts = ["1e-3", "1_000", "true", "on", "yes", "1:30", "0123", "0x1f", "nan", ".inf"]
folder = pathlib.Path("conf")
folder.mkdir()
different = []
print(f"hydra {hydra.__version__}, omegaconf {omegaconf.__version__}: text, value in a file, value on the command line")
with hydra.initialize_config_dir(str(folder.absolute()), version_base=None):
    for index, text in enumerate(texts):
        (folder / f"c{index}.yaml").write_text(f"x: {text}\n")
        (folder / f"d{index}.yaml").write_text("x: null\n")
        in_file = hydra.compose(f"c{index}").x
        on_line = hydra.compose(f"d{index}", [f"x={text}"]).x
        print(f"  {text:6} {in_file!r:8} {on_line!r}")
        if type(in_file) is not type(on_line):
            different.append(text)
assert different == texts[3:], different
PYTHON
