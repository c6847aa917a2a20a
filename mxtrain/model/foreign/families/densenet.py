"""DenseNets of torchvision and timm in Gluon's densenet121, 161, 169 and 201. Epsilon is 1e-5 in all.

Sources: torchvision 0.29.1, models/densenet.py; timm 1.0.31, models/densenet.py; mxnet 1.9.1,
gluon/model_zoo/vision/densenet.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Callable, List, Mapping, Tuple

from mxtrain.model.foreign.table import (
    Config,
    Family,
    FamilyTable,
    batch_norm,
    count_units,
    layer,
    require_architecture,
    rules,
)

if TYPE_CHECKING:
    import numpy as np
    from mxnet import gluon

BLOCKS: Mapping[Tuple[int, ...], int] = {
    (6, 12, 24, 16): 121,
    (6, 12, 36, 24): 161,
    (6, 12, 32, 32): 169,
    (6, 12, 48, 32): 201,
}
"""Layers of the dense blocks -> depth."""
DENSE = r"features\.denseblock(\d)\.denselayer(\d+)"


def _dense_layer(first: int) -> Callable[[int, int, int], str]:
    """Returns the names in a layer of batch norm, ReLU and convolution, twice; Gluon's blocks and transitions alternate
    in `features` from 4 on."""
    return lambda block, number, part: f"features.{2 * block + 2}.{number - 1}.1.{3 * (part - 1) + first}"


def _settings(arrays: Mapping[str, np.ndarray], config: Config) -> str:
    return f"model.name=densenet{BLOCKS.get(count_units(arrays, 'features.denseblock{0}.'), 121)}"


def _check(arrays: Mapping[str, np.ndarray], network: gluon.Block, config: Config) -> List[str]:
    require_architecture(config, r"(tv_)?densenet(?!.*blur).*")
    return []


FAMILY = Family(
    name="DenseNet of torchvision and timm",
    mark=r"features\.denseblock1\.denselayer1\.conv1\.weight",
    tables=(
        FamilyTable(
            "Gluon's densenet121 to densenet201",
            rules(
                layer(r"features\.conv0", "features.0"),
                batch_norm(r"features\.norm0", "features.1"),
                batch_norm(rf"{DENSE}\.norm(\d)", _dense_layer(0)),
                layer(rf"{DENSE}\.conv(\d)", _dense_layer(2)),
                batch_norm(r"features\.transition(\d)\.norm", lambda n: f"features.{2 * n + 3}.0"),
                layer(r"features\.transition(\d)\.conv", lambda n: f"features.{2 * n + 3}.2"),
                batch_norm(r"features\.norm5", "features.11"),
                layer(r"classifier", "output"),
            ),
            check=_check,
        ),
    ),
    settings=_settings,
    heads=r"classifier\..*",
    own_heads=r"output\..*",
)
