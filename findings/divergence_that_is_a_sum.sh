#!/usr/bin/env bash
# mxnet 1.9.1
# Guess: KLDivLoss of Gluon averages over all axes but the batch, as its documentation says ("Dimenions other than
# batch_axis are averaged out") and as the other losses do.
# What happened: it sums them, so it is K times as large for K classes, and over a sequence also as many times as it is
# long. A factor that was tuned for a loss that averages is far too large. Exit code 0 as long as this is so.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q mxnet==1.9.1 numpy==1.23.5 "setuptools<81"
cd "$folder"
venv/bin/python -W ignore - <<'PYTHON'
import mxnet as mx
import numpy as np
from mxnet import gluon, nd

print(f"mxnet {mx.__version__}: loss of a sample, shapes (1, classes) and (1, time, classes)")
ratios = []
for shape in ((1, 4), (1, 10), (1, 5, 4)):
    target = np.random.RandomState(0).dirichlet(np.ones(shape[-1]), shape[:-1]).astype(np.float32)
    log_uniform = np.full(shape, -np.log(shape[-1]), np.float32)
    terms = target * (np.log(target) - log_uniform)
    loss = gluon.loss.KLDivLoss()(nd.array(log_uniform), nd.array(target)).asscalar()
    squared = gluon.loss.L2Loss()(nd.array(log_uniform), nd.array(target)).asscalar()
    ratios.append((loss / terms.mean(), squared / np.square(target - log_uniform).mean() * 2))
    print(f"  {shape}: loss {loss:.4f}, mean {terms.mean():.4f}, sum {terms.sum():.4f}")
assert np.allclose(ratios, [(4, 1), (10, 1), (20, 1)], rtol=1e-4)
assert "averaged out" in gluon.loss.KLDivLoss.__doc__
PYTHON
