"""VGG of torchvision and timm, with and without batch norm, in Gluon's vgg11 to vgg19_bn.

Convolutions and batch norms have the same numbers in both. Gluon's dense layers follow in `features`; timm has
convolutions of 7x7 and 1x1 in their place, whose weights are the same numbers. Epsilon is 1e-5.

Sources: torchvision 0.29.1, models/vgg.py; timm 1.0.31, models/vgg.py; mxnet 1.9.1, gluon/model_zoo/vision/vgg.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, List, Mapping

from mxtrain.model.foreign.table import (
    Config,
    DoesNotFit,
    Family,
    FamilyTable,
    batch_norm,
    layer,
    require_architecture,
    rules,
)

if TYPE_CHECKING:
    import numpy as np
    from mxnet import gluon

DEPTHS = {8: 11, 10: 13, 13: 16, 16: 19}
"""Convolutions -> depth."""
FIRST_DENSE = (21, 25, 29, 31, 35, 37, 44, 53)
"""Numbers of the first dense layer in Gluon's `features`: it follows the last pooling."""
SIDE = 7
"""Positions along each side of what the first dense layer reads."""


def _as_matrix(array: np.ndarray) -> np.ndarray:
    return array.reshape(len(array), -1)


def _depth(arrays: Mapping[str, np.ndarray]) -> int:
    weights = [name for name, array in arrays.items() if name.startswith("features.") and array.ndim == 4]
    return DEPTHS.get(len(weights), 16)


def _settings(arrays: Mapping[str, np.ndarray], config: Config) -> str:
    normed = any(name.startswith("features.") and name.endswith("running_mean") for name in arrays)
    return f"model.name=vgg{_depth(arrays)}{'_bn' if normed else ''}"


def _check(arrays: Mapping[str, np.ndarray], network: gluon.Block, config: Config) -> List[str]:
    require_architecture(config, r"vgg(11|13|16|19)(_bn)?(\..*)?")
    dense = [block.weight for block in network.features if type(block).__name__ == "Dense"]
    if dense and dense[0].shape[1] != 512 * SIDE * SIDE:
        raise DoesNotFit(
            "its first dense layer reads 7x7 positions, which are those of images of 224x224. Type "
            "dataset.image_size=[224,224]."
        )
    return []


def _table(first_dense: int) -> FamilyTable:
    """Returns the table for a network whose dense layers begin at a number in `features`."""
    return FamilyTable(
        "Gluon's vgg11 to vgg19_bn",
        rules(
            batch_norm(r"features\.(\d+)", "features.{0}"),
            layer(r"features\.(\d+)", "features.{0}"),
            layer(r"(?:classifier\.0|pre_logits\.fc1)", f"features.{first_dense}", _as_matrix),
            layer(r"(?:classifier\.3|pre_logits\.fc2)", f"features.{first_dense + 2}", _as_matrix),
            layer(r"(?:classifier\.6|head\.fc)", "output", _as_matrix),
        ),
        check=_check,
    )


FAMILY = Family(
    name="VGG of torchvision and timm",
    mark=r"(classifier\.6|pre_logits\.fc2)\.weight",
    tables=tuple(_table(number) for number in FIRST_DENSE),
    settings=_settings,
    heads=r"(classifier\.6|head\.fc)\..*",
    own_heads=r"output\..*",
)
