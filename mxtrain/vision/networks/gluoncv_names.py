"""Names of GluonCV's classification networks, and the image sizes that they accept.

This is a list, so that a wrong name is rejected without importing MXNet. A test compares it with GluonCV's registry.
Source: gluoncv 0.10.5.post0, model_zoo/model_zoo.py, without detection, segmentation, pose, video, tracking, depth, and
int8 networks (which cannot be trained).
"""

from __future__ import annotations

from typing import Collection, NamedTuple

CLASSIFICATION_NAMES = tuple(
    """
alexnet cifar_residualattentionnet452 cifar_residualattentionnet56 cifar_residualattentionnet92
cifar_resnet110_v1 cifar_resnet110_v2 cifar_resnet20_v1 cifar_resnet20_v2 cifar_resnet56_v1 cifar_resnet56_v2
cifar_resnext29_16x64d cifar_resnext29_32x4d cifar_wideresnet16_10 cifar_wideresnet28_10 cifar_wideresnet40_8
darknet53 densenet121 densenet161 densenet169 densenet201 dla34 googlenet hrnet_w18_c hrnet_w18_small_v1_c
hrnet_w18_small_v2_c hrnet_w30_c hrnet_w32_c hrnet_w40_c hrnet_w44_c hrnet_w48_c hrnet_w64_c inceptionv3
mobilenet0.25 mobilenet0.5 mobilenet0.75 mobilenet1.0 mobilenetv2_0.25 mobilenetv2_0.5 mobilenetv2_0.75
mobilenetv2_1.0 mobilenetv3_large mobilenetv3_small nasnet_4_1056 nasnet_5_1538 nasnet_6_4032 nasnet_7_1920
residualattentionnet128 residualattentionnet164 residualattentionnet200 residualattentionnet236
residualattentionnet452 residualattentionnet56 residualattentionnet92 resnest101 resnest14 resnest200 resnest26
resnest269 resnest50 resnet101_v1 resnet101_v1b resnet101_v1b_gn resnet101_v1c resnet101_v1d resnet101_v1d_0.73
resnet101_v1d_0.76 resnet101_v1e resnet101_v1s resnet101_v2 resnet152_v1 resnet152_v1b resnet152_v1c
resnet152_v1d resnet152_v1e resnet152_v1s resnet152_v2 resnet18_v1 resnet18_v1b resnet18_v1b_0.89 resnet18_v2
resnet34_v1 resnet34_v1b resnet34_v2 resnet50_v1 resnet50_v1b resnet50_v1b_gn resnet50_v1c resnet50_v1d
resnet50_v1d_0.11 resnet50_v1d_0.37 resnet50_v1d_0.48 resnet50_v1d_0.86 resnet50_v1e resnet50_v1s resnet50_v2
resnext101_32x4d resnext101_64x4d resnext101e_64x4d resnext50_32x4d se_resnet101_v1 se_resnet101_v2
se_resnet152_v1 se_resnet152_v2 se_resnet18_v1 se_resnet18_v2 se_resnet34_v1 se_resnet34_v2 se_resnet50_v1
se_resnet50_v2 se_resnext101_32x4d se_resnext101_64x4d se_resnext101e_64x4d se_resnext50_32x4d senet_154
senet_154e shufflenet_v1 shufflenet_v2 squeezenet1.0 squeezenet1.1 vgg11 vgg11_bn vgg13 vgg13_bn vgg16 vgg16_bn
vgg19 vgg19_bn xception xception71
""".split()
)


class InputSizes(NamedTuple):
    """Image sizes that a network accepts, in pixels along each side."""

    usual: int
    """Size of the images that the network was published for."""
    minimum: int
    """Smallest size that is used unless the user chooses a smaller one."""
    multiple: int = 1
    """Both sides must be multiples of this, except for the usual size."""
    is_fixed: bool = False
    """If True, only the usual size is accepted."""


# Found by inferring shapes for 8 to 331 pixels. The first prefix that fits is used.
SIZES = {
    "cifar_residualattentionnet": InputSizes(32, 32, is_fixed=True),
    "residualattentionnet": InputSizes(224, 224, is_fixed=True),
    "cifar_": InputSizes(32, 8),
    "densenet": InputSizes(224, 224),
    "squeezenet": InputSizes(224, 224),
    "googlenet": InputSizes(224, 224),
    "inceptionv3": InputSizes(299, 299),
    "xception": InputSizes(299, 64),
    "nasnet_6_4032": InputSizes(331, 64, multiple=32),
    "nasnet": InputSizes(224, 64, multiple=32),
    "dla34": InputSizes(224, 64, multiple=32),
    "hrnet": InputSizes(224, 64, multiple=32),
    "": InputSizes(224, 64),
}
"""Prefix of a name -> accepted image sizes."""


def sizes_of(name: str) -> InputSizes:
    """Returns the image sizes that a network accepts."""
    return next(sizes for beginning, sizes in SIZES.items() if name.startswith(beginning))


def without_suffix(name: str, suffixes: Collection[str]) -> str:
    """Removes the suffix of a dataset from a name of GluonCV: `fcn_resnet50` for `fcn_resnet50_ade`.

    Args:
        name: name of the network.
        suffixes: names of datasets, which GluonCV appends after an underscore.
    """
    plain, _, last = name.rpartition("_")
    return plain if last in suffixes else name


def gluoncv_name(word: str) -> str:
    """Returns GluonCV's name of a classification network for an approximate name: `resnet50_v1b` for `resnet50`; "" if
    there is none."""
    word = word.lower().replace("-", "")
    if word in CLASSIFICATION_NAMES:
        return word
    matches = [name for name in CLASSIFICATION_NAMES if len(word) > 2 and name.startswith(word)]
    if not any(letter.isdigit() for letter in word):
        return min(matches, key=len, default="") if word not in ("cifar", "res") else ""
    return next((name for name in matches if name == word + "_v1b"), min(matches, key=len, default=""))
