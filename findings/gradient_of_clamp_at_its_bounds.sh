#!/usr/bin/env bash
# torch 2.14.1
# Guess: the gradient of torch.clamp is 1 where the input equals a bound, as PyTorch has documented in its sources since
# 2018 (pytorch#7049) and as MXNet's clip has it.
# What happened: it is 0 for bounds that are numbers, as in hardtanh and relu6, and half for bounds that are tensors.
# Weights that start at a bound, such as 0 of clamp(min=0), do not learn any more after an update of PyTorch.
# Source of the change: pytorch#191142, for #184572 and #184574. Exit code 0 as long as this is so.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q torch==2.14.1 numpy==1.26.4
cd "$folder"
venv/bin/python -W ignore - <<'PYTHON'
import torch

points = [-2.0, -1.0, 0.0, 1.0, 2.0]


def gradient(function):
    """Returns the gradient of a function at each point."""
    x = torch.tensor(points, requires_grad=True)
    function(x).sum().backward()
    return x.grad.tolist()


print(f"torch {torch.__version__}: gradient at {points}")
found = {
    "clamp(-1, 1)": gradient(lambda x: x.clamp(-1, 1)),
    "clamp(min=-1)": gradient(lambda x: x.clamp(min=-1)),
    "hardtanh": gradient(torch.nn.functional.hardtanh),
    "clamp of tensors": gradient(lambda x: x.clamp(torch.tensor(-1.0), torch.tensor(1.0))),
}
for name, numbers in found.items():
    print(f"  {name:16} {numbers}")
assert found["clamp(-1, 1)"] == found["hardtanh"] == [0, 0, 1, 0, 0] and found["clamp(min=-1)"] == [0, 0, 1, 1, 1]
assert found["clamp of tensors"] == [0, 0.5, 1, 0.5, 0]
PYTHON
