"""ResNets of torchvision and timm: `resnet50`, timm's `resnet50c`, `resnet50d`, `resnet50s`, and ResNeXt.

The 3x3 convolution of a bottleneck has the stride, as in GluonCV's v1b to v1s and in `model=resnet`; Gluon's v1 has it
in the first 1x1 convolution, and can take the weights of depths 18 and 34 only. All have the epsilon 1e-5. GluonCV's
ResNeXt, also with weights of channels ("SE"), has its layers under the numbers of Gluon's v1.

Sources: torchvision 0.29.1, models/resnet.py; timm 1.0.31, models/resnet.py; gluoncv 0.10.5, model_zoo/resnetv1b.py and
resnext.py.
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
WIDTH = 64
"""Channels of the first convolution in a block of a network without groups."""
RESNEXTS = ((50, 32, 4), (101, 32, 4), (101, 64, 4))
"""Depth, groups and channels of a group in the ResNeXts of GluonCV."""
ARCHITECTURES = r"(resnet(18|34|50|101|152)[cds]?|(se)?resnext(50_32|101_(32|64))x4d)(\..*)?"
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
        layer(rf"{block}\.se\.fc(\d)", lambda stage, b, n: f"features.{stage + 3}.{b}.se.{2 * n - 2}"),
        layer(r"fc", "output"),
    )


def _groups(arrays: Mapping[str, np.ndarray]) -> Tuple[int, int]:
    """Returns the number of groups in the first 3x3 convolution of a bottleneck, and the channels of a group."""
    weight = arrays.get("layer1.0.conv2.weight")
    return (1, WIDTH) if weight is None else (weight.shape[0] // weight.shape[1], weight.shape[1])


def _settings(arrays: Mapping[str, np.ndarray], config: Config) -> str:
    depth = BLOCKS.get(count_units(arrays, "layer{0}."), {}).get("layer1.0.conv3.weight" in arrays)
    groups, width = _groups(arrays)
    has_stem = "conv1.6.weight" in arrays
    channel_weights = "se_" if "layer1.0.se.fc1.weight" in arrays else ""
    if (depth, groups, width) in RESNEXTS and not has_stem:
        return f"model.name={channel_weights}resnext{depth}_{groups}x{width}d"
    if depth is None or (groups, width) != (1, WIDTH) or channel_weights:
        return ""
    letter = "b"
    if has_stem:
        is_wide, averages = arrays["conv1.0.weight"].shape[0] == 64, "layer2.0.downsample.2.weight" in arrays
        letter = {(False, False): "c", (False, True): "d", (True, True): "e", (True, False): "s"}[is_wide, averages]
    return f"model.name=resnet{depth}_v1{letter}"


def _check(arrays: Mapping[str, np.ndarray], network: gluon.Block, config: Config) -> List[str]:
    known = (
        " Networks that are known to agree are resnet18, 34, 50, 101 and 152, also with c, d or s at the end, "
        "resnext50_32x4d, resnext101_32x4d and resnext101_64x4d, also with se at the beginning."
    )
    name = require_architecture(config, ARCHITECTURES, known)
    return [] if name else ["no config.json beside it names the architecture: names and shapes alone were compared"]


def _check_v1(arrays: Mapping[str, np.ndarray], network: gluon.Block, config: Config) -> List[str]:
    is_plain = "layer1.0.conv3.weight" in arrays and _groups(arrays)[0] == 1
    if is_plain and any("bias" in name for name in network.features.collect_params()):
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
        FamilyTable(
            "Gluon's resnet18_v1 and resnet34_v1, GluonCV's resnext and se_resnext",
            _numbered("downsample"),
            check=_check_v1,
        ),
        FamilyTable("model=resnet with a large stem", _numbered("shortcut"), check=_check),
    ),
    settings=_settings,
    heads=r"fc\..*",
    own_heads=r"(fc|output)\..*",
)
