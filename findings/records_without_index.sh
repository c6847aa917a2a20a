#!/usr/bin/env bash
# mxnet 1.9.1
# Guess: ImageRecordUInt8Iter gives each record once, says in `pad` how many samples of the last batch are repeated, and
# in `index` which records a batch has, from the .idx file.
# What happened: with round_batch=False the last of five batches of 64 has 44 records and 20 repetitions of others, and
# pad is 0 for all: metrics count 320 samples of 300. `index` is 0 for every sample, with an .idx file whose ids are 0
# to 299. Exit code 0 as long as this is so.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q mxnet==1.9.1 numpy==1.23.5 "setuptools<81" opencv-python-headless==4.8.1.78
cd "$folder"
venv/bin/python -W ignore - <<'PYTHON'
import mxnet as mx
import numpy as np
from mxnet import recordio

writer = recordio.MXIndexedRecordIO("images.idx", "images.rec", "w")
for number in range(300):
    image = np.full((32, 32, 3), number % 256, np.uint8)
    header = recordio.IRHeader(0, float(number), number, 0)
    writer.write_idx(number, recordio.pack_img(header, image, quality=9, img_fmt=".png"))
writer.close()
iterator = mx.io.ImageRecordUInt8Iter(
    path_imgrec="images.rec", path_imgidx="images.idx", data_shape=(3, 32, 32), batch_size=64, round_batch=False
)
labels, pads, indices = [], [], []
for batch in iterator:
    labels += batch.label[0].asnumpy().astype(int).tolist()
    pads.append(batch.pad)
    indices += batch.index.tolist()
print(f"mxnet {mx.__version__}: {len(labels)} samples of 300 records, pad {pads}, index {sorted(set(indices))}")
assert len(labels) == 320 and not any(pads) and set(indices) == {0}
PYTHON
