"""MobileNetV2 of torchvision and timm in GluonCV's mobilenetv2_1.0; narrower ones have other numbers of channels.

The output layer of Gluon's is a convolution without bias, so that of the file is not used. Epsilon is 1e-5, and the
activation ReLU6, in all. There are no tables for MobileNetV1 and V3: see efficientnet.py.

Sources: torchvision 0.29.1, models/mobilenetv2.py; timm 1.0.31, models/efficientnet.py; mxnet 1.9.1,
gluon/model_zoo/vision/mobilenet.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Callable, List, Mapping

from mxtrain.model.foreign.table import Config, Family, FamilyTable, batch_norm, layer, require_architecture, rules

if TYPE_CHECKING:
    import numpy as np
    from mxnet import gluon

FIRST_UNIT, LAST_CONV = 3, 20
"""Numbers of the first bottleneck and of the last convolution in `features`."""
NUMBER_BEFORE = (0, 1, 3, 6, 10, 13, 16)
"""Bottlenecks before each stage."""
PARTS = {"conv_pw": 0, "conv_dw": 1, "conv_pwl": 2, "bn1": 0, "bn2": 1, "bn3": 2}
"""Layers of a bottleneck of timm -> position. The first bottleneck has no first convolution."""
STEM_CHANNELS = 32
REMARK = "the output layer of the network has no bias, so that of the file is not used: it starts anew"


def _unit(number: int, position: int, is_norm: bool) -> str:
    return f"features.{FIRST_UNIT + number}.out.{3 * position + is_norm}"


def _of_timm(is_norm: bool) -> Callable[[int, int, str], str]:
    def name(stage: int, number: int, part: str) -> str:
        position = PARTS[part]
        if stage == 0 and not is_norm:
            position = {"conv_dw": 0, "conv_pw": 1}.get(part, position)
        return _unit(NUMBER_BEFORE[stage] + number, position, is_norm)

    return name


def _check(arrays: Mapping[str, np.ndarray], network: gluon.Block, config: Config) -> List[str]:
    require_architecture(config, r"mobilenetv2.*")
    return [REMARK]


def _settings(arrays: Mapping[str, np.ndarray], config: Config) -> str:
    stem = arrays.get("conv_stem.weight", arrays.get("features.0.0.weight"))
    return "model.name=mobilenetv2_1.0" if stem is None or len(stem) == STEM_CHANNELS else ""


TIMM = r"blocks\.(\d)\.(\d)"
BLOCK = r"features\.([2-9]|1[0-7])\.conv"

FAMILY = Family(
    name="MobileNetV2 of torchvision and timm",
    mark=r"(features\.1\.conv\.1|blocks\.1\.0\.conv_pwl)\.weight",
    tables=(
        FamilyTable(
            "GluonCV's mobilenetv2_1.0",
            rules(
                batch_norm(r"(?:features\.0\.1|bn1)", "features.1"),
                layer(r"(?:features\.0\.0|conv_stem)", "features.0"),
                batch_norm(r"(?:features\.18\.1|bn2)", f"features.{LAST_CONV + 1}"),
                layer(r"(?:features\.18\.0|conv_head)", f"features.{LAST_CONV}"),
                # torchvision: the first bottleneck has two convolutions, the others three.
                batch_norm(r"features\.1\.conv\.0\.1", _unit(0, 0, True)),
                batch_norm(r"features\.1\.conv\.2", _unit(0, 1, True)),
                layer(r"features\.1\.conv\.0\.0", _unit(0, 0, False)),
                layer(r"features\.1\.conv\.1", _unit(0, 1, False)),
                batch_norm(rf"{BLOCK}\.([01])\.1", lambda number, n: _unit(number - 1, n, True)),
                batch_norm(rf"{BLOCK}\.3", lambda number: _unit(number - 1, 2, True)),
                layer(rf"{BLOCK}\.([01])\.0", lambda number, n: _unit(number - 1, n, False)),
                layer(rf"{BLOCK}\.2", lambda number: _unit(number - 1, 2, False)),
                batch_norm(rf"{TIMM}\.(bn\d)", _of_timm(True)),
                layer(rf"{TIMM}\.(conv_\w+)", _of_timm(False)),
            ),
            check=_check,
        ),
    ),
    settings=_settings,
    heads=r"(classifier|classifier\.1)\.(weight|bias)",
    own_heads=r"output\..*",
    looks_like=lambda arrays: not any(".se." in name for name in arrays),
)
