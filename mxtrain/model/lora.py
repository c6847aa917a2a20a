"""LoRA: trains low-rank additions to dense layers, whose own weights are frozen. Imports no MXNet until called.

A layer W x + b becomes W x + b + (alpha / r) B A x, with A (r, inputs) and B (outputs, r). A run trains such a network;
everything that opens a checkpoint of it (`eval`, `predict`, `export`, ...) computes W + (alpha / r) B A once, and
builds the network without additions.

Source: Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", https://arxiv.org/abs/2106.09685.
"""

from __future__ import annotations

import fnmatch
from typing import TYPE_CHECKING, Collection, Dict, List, Mapping, Optional

import pydantic

from mxtrain.errors import ConfigError, WeightsError, nearest
from mxtrain.types import OpenFraction, PathText, Positive, PositiveFloat, Spec

if TYPE_CHECKING:
    import numpy as np

A, B = "lora_a", "lora_b"
"""Names of the two matrices of an addition, in place of "weight" in the name of the layer's weight."""


class Lora(Spec):
    """Low-rank additions (LoRA). The network's own parameters are frozen, unless `model.weights` lacks them."""

    rank: Optional[Positive] = None
    """Rank of the additions, usually 4 to 64; null = no LoRA."""
    alpha: PositiveFloat = 16.0
    """The additions are multiplied by alpha / rank."""
    layers: List[str] = ["*"]
    """Patterns of the dense layers that get an addition, e.g. ["*.proj_query", "*.proj_value"] for BERT; of layers that
    are trained themselves, none does."""
    dropout: OpenFraction = 0.0
    """Dropout probability of the inputs of additions."""
    train: List[str] = []
    """Patterns of parameters that are trained themselves, e.g. ["classifier.*"]. Parameters that `model.weights` does
    not have are trained in any case."""
    adapter: Optional[PathText] = None
    """Initial additions, and layers that were trained with them: folder of Hugging Face PEFT with adapter_config.json
    and adapter_model.safetensors. rank, alpha and layers must be its own."""

    @pydantic.model_validator(mode="after")
    def _check_rank(self) -> Lora:
        given = [name for name, field in type(self).model_fields.items() if getattr(self, name) != field.default]
        if self.rank is None and self.adapter is not None:
            raise ValueError(
                f"adapter={self.adapter} has no effect without a rank. Type the r and lora_alpha of its "
                "adapter_config.json, e.g. model.lora.rank=8 model.lora.alpha=16"
            )
        if self.rank is None and given:
            raise ValueError(f"{', '.join(given)} has no effect without a rank. Type model.lora.rank=8")
        if not self.layers:
            raise ValueError('layers is empty, so nothing would get an addition. Type layers=["*"]')
        return self


def merge(arrays: Mapping[str, np.ndarray], lora: Lora) -> Dict[str, np.ndarray]:
    """Returns the weights of the network without additions: W + (alpha / r) B A.

    Args:
        arrays: structural name -> array, of a network that was trained with `lora`.
        lora: the settings.

    Raises:
        WeightsError: a matrix of an addition lacks the other one or its weight, or does not fit it.
    """
    import numpy as np

    if lora.rank is None:
        return dict(arrays)
    merged = {name: array for name, array in arrays.items() if not is_addition(name)}
    for name in arrays:
        if not name.endswith(A):
            continue
        stem = name[: -len(A)]
        first, second, weight = arrays[name], arrays.get(f"{stem}{B}"), merged.get(f"{stem}weight")
        if second is None or weight is None or (second.shape[0], first.shape[1]) != weight.shape:
            raise WeightsError(f"'{name}' is no addition of rank {lora.rank} to '{stem}weight'.")
        # In float64, so that the sum is rounded once.
        product = second.astype(np.float64) @ first.astype(np.float64)
        merged[f"{stem}weight"] = (weight + lora.alpha / lora.rank * product).astype(weight.dtype)
    return merged


def is_addition(name: str) -> bool:
    """Returns True for the name of a matrix of an addition."""
    return name.endswith((f".{A}", f".{B}")) or name in (A, B)


def refuse_additions(path: str, unused: Collection[str]) -> None:
    """Refuses weights files with additions, which would be ignored.

    Args:
        path: path of the file.
        unused: names of its arrays that the network does not have.

    Raises:
        WeightsError: one of them belongs to an addition.
    """
    found = [name for name in unused if is_addition(name)]
    if found:
        raise WeightsError(
            f"The weights file {path} is of a run with model.lora, and holds its additions beside the weights: "
            f"{found[0]}. Type `mxtrain export RUN for=safetensors`, which adds them up, and model.weights=RUN/export."
        )


def match_names(pattern: str, names: List[str], setting: str, kind: str) -> List[str]:
    """Returns the names that match a pattern.

    Args:
        pattern: glob.
        names: names of parameters or layers.
        setting: field of `Lora` with the pattern, for messages.
        kind: kind of the names, for messages.

    Raises:
        ConfigError: there are none; the message has the nearest ones.
    """
    matches = [name for name in names if fnmatch.fnmatchcase(name, pattern)]
    if not matches:
        # By the last parts: patterns are usually short, and names long.
        ends = dict.fromkeys(f"*.{end}" for end in (name.rpartition(".")[2] for name in names) if not end.isdigit())
        near = nearest(f"*.{pattern.rpartition('.')[2].strip('*')}", list(ends), 3)
        known = f"Did you mean {' or '.join(near)}?" if near else f"Names are like {', '.join(names[:3])}."
        raise ConfigError(
            f"model.lora.{setting}: the pattern '{pattern}' matches no {kind} of the network. {known} '*' matches any "
            "text, dots as well."
        )
    return matches
