"""ResNets of torchvision and timm: `resnet50`, and timm's `resnet50c`, `resnet50d`, `resnet50s`.

The 3x3 convolution of a bottleneck has the stride, as in GluonCV's v1b to v1s and in `model=resnet`; Gluon's v1 has it
in the first 1x1 convolution, and can take the weights of depths 18 and 34 only. All have the epsilon 1e-5.

Sources: torchvision 0.29.1, models/resnet.py; timm 1.0.31, models/resnet.py; gluoncv 0.10.5, model_zoo/resnetv1b.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, List, Mapping, Sequence, Tuple

from mxtrain.model.foreign.table import (
    Config,
    DoesNotFit,
    Family,
    FamilyTable,
    Rule,
    batch_norm,
    count_units,
    layer,
    require_architecture,
    rules,
)

if TYPE_CHECKING:
    import numpy as np
    from mxnet import gluon

BLOCKS: Mapping[Tuple[int, ...], Mapping[bool, int]] = {
    (2, 2, 2, 2): {False: 18},
    (3, 4, 6, 3): {False: 34, True: 50},
    (3, 4, 23, 3): {True: 101},
    (3, 8, 36, 3): {True: 152},
}
"""Blocks of the stages -> with bottlenecks -> depth."""
ARCHITECTURES = r"resnet(18|34|50|101|152)[cds]?(\..*)?"
"""Networks of timm that are computed as GluonCV's; others with the same names (such as resnetaa50) are not."""

GLUONCV = rules(
    batch_norm(r"(.*(?:bn\d|conv1\.\d|downsample\.\d))", "{0}"),
    layer(r"(conv1(?:\.\d)?|layer\d\.\d+\.(?:conv\d|downsample\.\d)|fc)", "{0}"),
)
"""GluonCV's names but for those of norms."""


def _numbered(shortcut: str) -> Sequence[Rule]:
    """Returns the table for networks with numbered layers, whose shortcuts have the given name."""
    block = r"layer(\d)\.(\d+)"
    return rules(
        layer(r"conv1", "features.0"),
        batch_norm(r"bn1", "features.1"),
        layer(rf"{block}\.conv(\d)", lambda stage, b, n: f"features.{stage + 3}.{b}.body.{3 * n - 3}"),
        batch_norm(rf"{block}\.bn(\d)", lambda stage, b, n: f"features.{stage + 3}.{b}.body.{3 * n - 2}"),
        batch_norm(rf"{block}\.downsample\.(1)", lambda stage, b, n: f"features.{stage + 3}.{b}.{shortcut}.{n}"),
        layer(rf"{block}\.downsample\.(0)", lambda stage, b, n: f"features.{stage + 3}.{b}.{shortcut}.{n}"),
        layer(r"fc", "output"),
    )


def _settings(arrays: Mapping[str, np.ndarray], config: Config) -> str:
    depth = BLOCKS.get(count_units(arrays, "layer{0}."), {}).get("layer1.0.conv3.weight" in arrays)
    if depth is None:
        return "model.name=resnet50_v1b"
    letter = "b"
    if "conv1.6.weight" in arrays:
        is_wide, averages = arrays["conv1.0.weight"].shape[0] == 64, "layer2.0.downsample.2.weight" in arrays
        letter = {(False, False): "c", (False, True): "d", (True, True): "e", (True, False): "s"}[is_wide, averages]
    return f"model.name=resnet{depth}_v1{letter}"


def _check(arrays: Mapping[str, np.ndarray], network: gluon.Block, config: Config) -> List[str]:
    known = " Networks that are known to agree are resnet18, 34, 50, 101 and 152, also with c, d or s at the end."
    name = require_architecture(config, ARCHITECTURES, known)
    return [] if name else ["no config.json beside it names the architecture: names and shapes alone were compared"]


def _check_v1(arrays: Mapping[str, np.ndarray], network: gluon.Block, config: Config) -> List[str]:
    if "layer1.0.conv3.weight" in arrays and any("bias" in name for name in network.features.collect_params()):
        raise DoesNotFit(
            "Gluon's v1 has the stride of a bottleneck in its first 1x1 convolution, and the network of the file in "
            f"the 3x3 one. Type {_settings(arrays, config)}, which computes the same."
        )
    return _check(arrays, network, config)


FAMILY = Family(
    name="ResNet of torchvision and timm",
    mark=r"layer1\.0\.conv1\.weight",
    tables=(
        FamilyTable("GluonCV's resnet*_v1b to v1s", GLUONCV, check=_check),
        FamilyTable("Gluon's resnet18_v1 and resnet34_v1", _numbered("downsample"), check=_check_v1),
        FamilyTable("model=resnet with a large stem", _numbered("shortcut"), check=_check),
    ),
    settings=_settings,
    heads=r"fc\..*",
    own_heads=r"(fc|output)\..*",
)
