"""Writes the weights of a checkpoint as safetensors, without their network: without MXNet, PyTorch and data."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Mapping, Sequence

import numpy as np

from mxtrain.exporting.folder import CARD
from mxtrain.exporting.pytorch.names import torch_names
from mxtrain.exporting.pytorch.safetensors_file import write_safetensors
from mxtrain.files.durable import encode_json, replace_file
from mxtrain.files.new_folder import new_folder
from mxtrain.model.foreign.importing import NAMES

WEIGHTS = "model.safetensors"


@dataclass(frozen=True)
class WrittenWeights:
    """Result of an export for PyTorch.

    Attributes:
        folder: folder that was written.
        remarks: sentences for the user.
        proof: content of proof.json; empty if only weights were written.
    """

    folder: Path
    remarks: Sequence[str]
    proof: Mapping[str, Any] = field(default_factory=dict)


def export_weights(arrays: Mapping[str, np.ndarray], folder: Path, facts: Mapping[str, Any]) -> WrittenWeights:
    """Writes the weights into a new folder: model.safetensors, names.json and README.md.

    Args:
        arrays: weights by structural name.
        folder: folder to create.
        facts: facts about the checkpoint, for the file.

    Raises:
        DataError: the folder exists already or cannot be written, or a weight has a type that the format has not.
    """
    names = torch_names(arrays)
    with new_folder(folder) as root:
        metadata = {"format": "pt", **{name: str(value) for name, value in facts.items()}}
        write_safetensors(root / WEIGHTS, {names[name]: array for name, array in arrays.items()}, metadata)
        write_names(root, names)
        replace_file(root / CARD, _card(facts, arrays).encode())
    count = sum(array.size for array in arrays.values())
    return WrittenWeights(folder, [f"{len(arrays)} arrays with {count:,} numbers, read again and the same"])


def write_names(folder: Path, names: Mapping[str, str]) -> None:
    """Writes the map of structural names to those in PyTorch."""
    replace_file(folder / NAMES, encode_json(dict(names), 2) + b"\n")


def _card(facts: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> str:
    lines = [
        f"# Weights of {facts['model']}",
        "",
        f"Of step {facts['step']} of a run on {facts['dataset']}: {len(arrays)} arrays in `{WEIGHTS}`. `{NAMES}` maps "
        "the names that mxtrain gives them to those in the file, which are PyTorch's for the layers: gamma and beta "
        "are weight and bias.",
        "",
        "```python",
        "from safetensors.numpy import load_file  # or safetensors.torch",
        "",
        f'weights = load_file("{WEIGHTS}")',
        "```",
        "",
        "A GroupNorm of MXNet has one weight per group and PyTorch's one per channel. The moving variance of a "
        "BatchNorm is the biased one. `mxtrain export RUN for=pytorch` writes the network as well, and proves it.",
        "",
    ]
    return "\n".join(lines)
