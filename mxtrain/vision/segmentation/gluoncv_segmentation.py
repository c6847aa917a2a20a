"""GluonCV's segmentation networks, by name or by architecture and backbone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Dict, Mapping, Tuple

import pydantic

from mxtrain.errors import did_you_mean
from mxtrain.types import Shape
from mxtrain.types.kinds import Images, Takes
from mxtrain.vision.classification.gluoncv import EXCLUDED_OPTIONS, GluonCVModel, no_such_network
from mxtrain.vision.detection.heads.zoo import BY_NAME
from mxtrain.vision.kinds import ClassMap
from mxtrain.vision.networks.gluoncv_names import without_suffix

if TYPE_CHECKING:
    from mxnet import gluon

DATASETS = ("ade", "citys", "coco", "mhpv1", "voc")
"""Suffixes of GluonCV's names for networks with the classes of one dataset."""

ARCHITECTURES = {"fcn": 1, "psp": 1, "deeplab": 1, "icnet": 2, "danet": 2}
"""Architecture that takes any backbone -> number of its auxiliary outputs."""
BACKBONES = ("resnet50", "resnet101", "resnet152", "resnest50", "resnest101", "resnest200", "resnest269")
SMALL_BACKBONES = ("resnet18", "resnet34")
"""Unsupported backbones: GluonCV's heads need maps of 1,024 and 2,048 channels, which these do not have."""

NUM_AUXILIARY: Mapping[str, int] = {
    **{f"{kind}_{backbone}": number for kind, number in ARCHITECTURES.items() for backbone in BACKBONES},
    "deeplab_plus_xception": 1,
    "deeplab_v3b_plus_wideresnet": 0,
    "fastscnn": 1,
}
"""Name -> number of auxiliary outputs of the network. Source: gluoncv 0.10.5.post0, model_zoo/segbase.py."""

OPTIONS: Mapping[str, Tuple[str, ...]] = {
    "norm_kwargs": ("",),
    "use_global_stats": tuple(ARCHITECTURES),
    "last_gamma": tuple(ARCHITECTURES),
    "lr_mult": ("icnet",),
    "dilated": ("deeplab_plus",),
}
"""Argument of GluonCV's networks -> prefixes of the names that accept it. Other networks silently ignore unknown
arguments, including misspelt ones."""

LISTING = {"detection": "ssd", "instance_segmentation": "mask_rcnn"}
"""Task -> option of conf/model/ whose error message lists the names of its networks."""

VIDEO_BEGINNING = "i3d"
VIDEO_ENDINGS = ("_kinetics400", "_sthsthv2", "_hmdb51", "_ucf101")
"""Beginning and endings of the names of GluonCV's networks for videos."""

SIZE_REASON = "the network takes images of any size, which the dataset gives"


class GluonCVSegmentation(GluonCVModel):
    """A segmentation network of GluonCV's; its parameter names are GluonCV's, so weights can be exchanged.

    `weights=pretrained` starts from the weights that GluonCV publishes.
    """

    takes: ClassVar[Takes] = Takes(Images, ClassMap)
    excluded_options: ClassVar[Mapping[str, str]] = {
        **EXCLUDED_OPTIONS,
        "nclass": EXCLUDED_OPTIONS["classes"],
        "backbone": "it is part of model.name",
        "aux": "type model.aux=true or model.aux=false",
        **dict.fromkeys(("crop_size", "base_size", "height", "width"), SIZE_REASON),
        "norm_layer": "it is BatchNorm, whose means parallel.batch_norm takes over several devices",
    }

    name: str = "fcn_resnet50"
    """Architecture and backbone, e.g. psp_resnet101, icnet_resnet50, fastscnn; GluonCV's dataset suffix, as in
    fcn_resnet50_ade, is allowed and ignored, because classes come from the dataset."""
    aux: bool = True
    """If true, the network has auxiliary outputs, used only in training."""
    options: Dict[str, Any] = {}
    """Further arguments of GluonCV's class of that network, e.g. {norm_kwargs: {momentum: 0.99}}."""

    @classmethod
    def option_of(cls, name: str, task: str) -> str:
        """Returns the option for a name of any of GluonCV's networks; see `Model.option_of`."""
        for beginning, option in BY_NAME.items():
            if name.startswith(beginning):
                return option
        if name.startswith(VIDEO_BEGINNING) or name.endswith(VIDEO_ENDINGS):
            return "gluoncv_video"
        if task in LISTING:
            return LISTING[task]
        if task == "pose_estimation" or name.startswith("simple_pose"):
            return "simple_pose"
        for_pixels = task == "segmentation" or name.startswith((*ARCHITECTURES, "fastscnn"))
        return "gluoncv_segmentation" if for_pixels else "gluoncv"

    @pydantic.field_validator("name")
    @classmethod
    def _known_name(cls, name: str) -> str:
        plain = without_dataset(name)
        architecture, _, backbone = plain.rpartition("_")
        if architecture in ARCHITECTURES and backbone in SMALL_BACKBONES:
            raise ValueError(
                f"GluonCV's {architecture} takes no {backbone}: its heads read 1,024 and 2,048 channels, which "
                f"{backbone} does not give. The smallest that works is {architecture}_resnet50; fastscnn is smaller"
            )
        if plain not in NUM_AUXILIARY:
            raise ValueError(no_such_network("segmentation", name, tuple(NUM_AUXILIARY)))
        return name

    @pydantic.model_validator(mode="after")
    def _known_options(self) -> GluonCVSegmentation:
        plain = without_dataset(self.name)
        known = [option for option, beginnings in OPTIONS.items() if plain.startswith(beginnings)]
        for option in self.options:
            if option not in known and not option.startswith("pretrained"):
                raise ValueError(
                    f"{plain} takes no option '{option}'.{did_you_mean(option, known)} It takes {', '.join(known)}. "
                    f"Remove or correct model.options.{option}"
                )
        return self

    @property
    def num_auxiliary(self) -> int:
        """Returns the number of auxiliary outputs, used only in training."""
        return NUM_AUXILIARY[without_dataset(self.name)] if self.aux else 0

    def input_shape(self, native: Shape) -> Shape:
        """Returns three channels and the native size."""
        return (3, *native[-2:])

    def build(self, num_classes: int, input_shape: Shape) -> gluon.HybridBlock:
        """Returns the network, uninitialized. It maps images (B, 3, H, W) to scores (B, num_classes, H, W); with
        auxiliary outputs, to a tuple of such scores, the main ones first.

        Raises:
            ConfigError: GluonCV is not installed, or refuses an option.
        """

        def build() -> gluon.HybridBlock:
            from mxtrain.vision.segmentation import networks as gluoncv_segmentation_zoo

            return gluoncv_segmentation_zoo.build(without_dataset(self.name), num_classes, self.aux, dict(self.options))

        return self._built(self.name, build)


def without_dataset(name: str) -> str:
    """Removes the dataset from a name: `fcn_resnet50` for `fcn_resnet50_ade`."""
    return without_suffix(name, DATASETS)
