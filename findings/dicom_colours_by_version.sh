#!/usr/bin/env bash
# pydicom 2.4.4 and 3.0.1, pillow 10.4.0
# Guess: pixel_array of one file is the same in pydicom 2 and 3, and PhotometricInterpretation says in which colour space
# it is.
# What happened: a red JPEG of pydicom's own test files is (76, 85, 255) in version 2 and (254, 0, 0) in version 3. The
# element says YBR_FULL in both, so a program that converts what says YBR converts twice after the update. RLE files
# are the same. Exit code 0 as long as this is so.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
cat > "$folder/read.py" <<'PYTHON'
import os

import pydicom

files = os.path.join(os.path.dirname(pydicom.__file__), "data", "test_files")
for name in ("SC_rgb_jpeg_dcmtk.dcm", "SC_rgb_rle.dcm"):
    dataset = pydicom.dcmread(os.path.join(files, name))
    colour = tuple(int(value) for value in dataset.pixel_array[0, 0])
    print(f"{name} {dataset.PhotometricInterpretation} {colour}")
PYTHON
for version in 2.4.4 3.0.1; do
  "${PYTHON:-python3.11}" -m venv "$folder/$version"
  "$folder/$version/bin/pip" install -q "pydicom==$version" pillow==10.4.0 numpy==1.26.4
  "$folder/$version/bin/python" -W ignore "$folder/read.py" > "$folder/$version.txt"
  sed "s/^/pydicom $version: /" "$folder/$version.txt"
done
grep -qF "SC_rgb_jpeg_dcmtk.dcm YBR_FULL (76, 85, 255)" "$folder/2.4.4.txt"
grep -qF "SC_rgb_jpeg_dcmtk.dcm YBR_FULL (254, 0, 0)" "$folder/3.0.1.txt"
grep -qF "SC_rgb_rle.dcm RGB (255, 0, 0)" "$folder/2.4.4.txt"
grep -qF "SC_rgb_rle.dcm RGB (255, 0, 0)" "$folder/3.0.1.txt"
