"""insightface's iresnet of PyTorch in `model=iresnet model.layout=pytorch`.

Its batch norms have the epsilon 1e-5 and its pixels are divided by 127.5; those of the MXNet code have 2e-5 and 128.
The scale of its last batch norm stays 1, as ours does. In Python, `safetensors.torch.save_file(torch.load(
"backbone.pth", weights_only=True), "model.safetensors")` converts a file of insightface.

Source: insightface, recognition/arcface_torch/backbones/iresnet.py and dataset.py (commit 443c28fa).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Callable, List, Mapping, Tuple

from mxtrain.model.foreign.table import (
    Config,
    DoesNotFit,
    Family,
    FamilyTable,
    Rule,
    batch_norm,
    count_units,
    layer,
    rules,
)

if TYPE_CHECKING:
    import numpy as np
    from mxnet import gluon

DEPTHS: Mapping[Tuple[int, ...], int] = {(2, 2, 2, 2): 18, (3, 4, 6, 3): 34, (3, 4, 14, 3): 50, (3, 13, 30, 3): 100}
"""Units of the stages -> depth."""
UNIT = r"layer(\d)\.(\d+)"
FIXED_SCALE = "features.weight"
EPSILON = 1e-5
"""Epsilon of its batch norms."""


def _in_unit(name: str) -> Callable[..., str]:
    """Returns the name of a layer in a unit, which is numbered from 1 in ours."""
    return lambda stage, number, *part: f"stage{stage}_unit{number + 1}.{name.format(*part)}"


def _settings(arrays: Mapping[str, np.ndarray], config: Config) -> str:
    size = f" task.embedding_size={len(arrays[FIXED_SCALE])}" if FIXED_SCALE in arrays else ""
    depth = DEPTHS.get(count_units(arrays, "layer{0}."), 50)
    return f"model=iresnet model.depth={depth} model.layout=pytorch{size}"


def _check(arrays: Mapping[str, np.ndarray], network: gluon.Block, config: Config) -> List[str]:
    norm = getattr(getattr(network, "embedding", network), "bn0", None)
    if norm is None or norm._kwargs["eps"] != EPSILON:
        raise DoesNotFit(
            "insightface's PyTorch code has another epsilon and scale of pixels than its MXNet code. Type "
            f"{_settings(arrays, config)}."
        )
    if FIXED_SCALE in arrays and (arrays[FIXED_SCALE] != 1).any():
        raise DoesNotFit(f"'{FIXED_SCALE}' is not 1 everywhere, and the network has no such scale.")
    return []


FAMILY = Family(
    name="insightface's iresnet of PyTorch",
    mark=r"layer1\.0\.prelu\.weight",
    tables=(
        FamilyTable(
            "model=iresnet model.layout=pytorch",
            rules(
                layer(r"conv1", "conv0"),
                batch_norm(r"bn1", "bn0"),
                Rule(r"prelu\.weight", "relu0.alpha"),
                batch_norm(rf"{UNIT}\.(bn\d)", _in_unit("{0}")),
                layer(rf"{UNIT}\.(conv\d)", _in_unit("{0}")),
                Rule(rf"{UNIT}\.prelu\.weight", _in_unit("relu1.alpha")),
                layer(rf"{UNIT}\.downsample\.0", _in_unit("conv1sc")),
                batch_norm(rf"{UNIT}\.downsample\.1", _in_unit("sc")),
                batch_norm(r"bn2", "bn1"),
                layer(r"fc", "pre_fc1"),
                batch_norm(r"features", "fc1"),
            ),
            check=_check,
        ),
    ),
    settings=_settings,
    own_heads=r"centres",
)
