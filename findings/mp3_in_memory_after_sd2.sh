#!/usr/bin/env bash
# soundfile 0.14.0 (libsndfile 1.2.2), numpy 1.26.4
# Guess: writing Sound Designer II into memory writes no file, and MP3 data in memory are read alike in any folder.
# What happened: writing SD2 to a BytesIO leaves an empty file `._` in the current folder, since the format keeps its
# header in a resource fork beside the (nameless) file. As long as `._` is there, MP3 data in memory, which have no
# signature that libsndfile tests first, are taken for SD2: "bad data offset". MP3 files with a name, and WAV data in
# memory, are read. Exit code 0 as long as this is so.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q soundfile==0.14.0 numpy==1.26.4
mkdir "$folder/work" && cd "$folder/work"
../venv/bin/python - <<'PYTHON'
import io
import os

import numpy as np
import soundfile

tone = 0.5 * np.sin(0.05 * np.arange(16000))


def frames_in_memory(kind):
    file = io.BytesIO()
    soundfile.write(file, tone, 16000, format=kind)
    file.seek(0)
    try:
        return len(soundfile.read(file)[0])
    except soundfile.LibsndfileError as error:
        return str(error).partition(": ")[2]


before = frames_in_memory("MP3"), os.listdir()
soundfile.write(io.BytesIO(), tone, 16000, format="SD2", subtype="PCM_16")
left, after, wav = os.listdir(), frames_in_memory("MP3"), frames_in_memory("WAV")
soundfile.write("tone.mp3", tone, 16000)
named = len(soundfile.read("tone.mp3")[0])
print(f"soundfile {soundfile.__version__}, {soundfile.__libsndfile_version__}")
print(f"  before: MP3 in memory {before[0]} frames, files {before[1]}")
print(f"  after SD2 in memory: files {left}; MP3 in memory: {after}; WAV in memory {wav} frames; MP3 file {named} frames")
assert before == (16000, []) and left == ["._"] and "bad data offset" in str(after) and wav == named == 16000
PYTHON
