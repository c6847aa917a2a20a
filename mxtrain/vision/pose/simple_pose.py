"""GluonCV's pose estimation networks, by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Dict, Mapping, Tuple

import pydantic

from mxtrain.errors import ConfigError, did_you_mean
from mxtrain.types import Shape
from mxtrain.types.kinds import Images, Takes
from mxtrain.vision.classification.gluoncv import EXCLUDED_OPTIONS, GluonCVModel, no_such_network
from mxtrain.vision.kinds import KeyPoints
from mxtrain.vision.networks.gluoncv_names import without_suffix
from mxtrain.vision.pose.model import PoseNetwork

if TYPE_CHECKING:
    from mxnet import gluon

NAMES = (
    "simple_pose_resnet18_v1b",
    "simple_pose_resnet50_v1b",
    "simple_pose_resnet101_v1b",
    "simple_pose_resnet152_v1b",
    "simple_pose_resnet50_v1d",
    "simple_pose_resnet101_v1d",
    "simple_pose_resnet152_v1d",
)
"""Source: gluoncv 0.10.5.post0, model_zoo/model_zoo.py."""
DATASETS = ("coco", "custom")
"""Suffixes of names that are ignored: key points come from the dataset."""
OPTIONS = (
    "num_deconv_layers",
    "num_deconv_filters",
    "num_deconv_kernels",
    "final_conv_kernel",
    "deconv_with_bias",
)
"""Arguments of GluonCV's class, which silently ignores unknown ones."""
STRIDE = 32
"""Stride of the backbone; each deconvolution halves it."""
NUM_DECONV_LAYERS = 3


class SimplePose(GluonCVModel, PoseNetwork):
    """A residual network with deconvolutions; its parameter names are GluonCV's, so weights can be exchanged.

    `weights=pretrained` starts from the weights that GluonCV publishes.

    Source: Xiao et al., "Simple Baselines for Human Pose Estimation and Tracking" (2018).
    """

    takes: ClassVar[Takes] = Takes(Images, KeyPoints)
    excluded_options: ClassVar[Mapping[str, str]] = {
        **EXCLUDED_OPTIONS,
        "num_joints": "the number of key points comes from the dataset",
        "base_name": "it is part of model.name",
    }

    name: str = "simple_pose_resnet18_v1b"
    """GluonCV's name, e.g. simple_pose_resnet50_v1d; GluonCV's dataset suffix, _coco or _custom, is allowed and
    ignored. Backbones are resnet18_v1b, resnet50_v1b, resnet101_v1b, resnet152_v1b, and v1d of all but 18."""
    options: Dict[str, Any] = {}
    """Further arguments of GluonCV's class, e.g. {num_deconv_filters: [128, 128, 128]}."""

    @property
    def published_name(self) -> str:
        """Returns the name under which GluonCV publishes weights."""
        return f"gluoncv:{plain_name(self.name)}"

    @pydantic.field_validator("name")
    @classmethod
    def _known_name(cls, name: str) -> str:
        if plain_name(name) not in NAMES:
            raise ValueError(no_such_network("key point", name, NAMES))
        return name

    @pydantic.field_validator("options")
    @classmethod
    def _known_options(cls, options: Dict[str, Any]) -> Dict[str, Any]:
        for option in options:
            if option not in OPTIONS and not option.startswith("pretrained"):
                raise ValueError(
                    f"GluonCV's simple_pose takes no option '{option}'.{did_you_mean(option, OPTIONS)} It takes "
                    f"{', '.join(OPTIONS)}. Remove or correct model.options.{option}"
                )
        return options

    def input_shape(self, native: Shape) -> Shape:
        """Returns three channels and the dataset's size."""
        return (3, *native[-2:])

    def map_size(self, input_shape: Shape) -> Tuple[int, int]:
        height, width = input_shape[1:]
        if height % STRIDE or width % STRIDE:
            nearest = [max(1, round(side / STRIDE)) * STRIDE for side in (height, width)]
            raise ConfigError(
                f"model=simple_pose takes height and width that are multiples of {STRIDE}, so that its heat maps fit "
                f"the image, but dataset.image_size=[{height},{width}] was given. Type dataset.image_size="
                f"[{nearest[0]},{nearest[1]}]."
            )
        layers = int(self.options.get("num_deconv_layers", NUM_DECONV_LAYERS))
        return height * 2**layers // STRIDE, width * 2**layers // STRIDE

    def build(self, num_classes: int, input_shape: Shape) -> gluon.HybridBlock:
        """Returns the network, uninitialized.

        Raises:
            ConfigError: GluonCV is not installed or refuses an option, or the height or width is not a multiple of 32.
        """
        self.map_size(input_shape)

        def build() -> gluon.HybridBlock:
            from mxtrain.vision.networks import gluoncv as gluoncv_zoo

            return gluoncv_zoo.build_pose(plain_name(self.name), num_classes, dict(self.options))

        return self._built(self.name, build)


def plain_name(name: str) -> str:
    """Returns a name without the suffix of a dataset."""
    return without_suffix(name, DATASETS)
