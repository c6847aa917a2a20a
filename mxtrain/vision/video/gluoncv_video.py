"""GluonCV's networks for videos, by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Dict

import pydantic

from mxtrain.errors import ConfigError
from mxtrain.types import Shape
from mxtrain.types.kinds import ClassIndex, ClassSet, Images, Number, Takes
from mxtrain.vision.classification.gluoncv import EXCLUDED_OPTIONS, GluonCVModel, no_such_network

if TYPE_CHECKING:
    from mxnet import gluon

SEGMENT_DEPTHS = (18, 34, 50, 101, 152)
SEGMENT_NAMES = (
    *(f"resnet{depth}_v1b_{data}" for depth in SEGMENT_DEPTHS for data in ("kinetics400", "sthsthv2")),
    "resnet50_v1b_hmdb51",
    "resnet50_v1b_ucf101",
)
"""Temporal segment networks: a network for images sees each frame, and the mean of the features is classified."""
INFLATED_NAMES = (
    "i3d_inceptionv1_kinetics400",
    "i3d_inceptionv3_kinetics400",
    "i3d_nl10_resnet101_v1_kinetics400",
    "i3d_nl10_resnet50_v1_kinetics400",
    "i3d_nl5_resnet101_v1_kinetics400",
    "i3d_nl5_resnet50_v1_kinetics400",
    "i3d_resnet101_v1_kinetics400",
    "i3d_resnet50_v1_hmdb51",
    "i3d_resnet50_v1_kinetics400",
    "i3d_resnet50_v1_sthsthv2",
    "i3d_resnet50_v1_ucf101",
)
"""Inflated 3D networks: convolutions over frames, too."""
VIDEO_NAMES = tuple(sorted([*SEGMENT_NAMES, *INFLATED_NAMES]))
"""Source: gluoncv 0.10.5.post0, model_zoo/model_zoo.py: networks of actionrec_resnetv1b.py, i3d_resnet.py and
i3d_inceptionv*.py; a test compares the list with GluonCV's registry."""
LEAST_FRAMES = 8
"""Smallest number of frames of inflated networks, which halve it three times."""


class GluonCVVideo(GluonCVModel):
    """A network of GluonCV for videos (3 T, H, W): a temporal segment network (TSN) or an inflated 3D one (I3D).

    Its parameter names are GluonCV's, so weights can be exchanged; `weights=pretrained` starts from those that GluonCV
    publishes for the data in the name.

    Source: Wang et al., "Temporal segment networks" (2016), https://arxiv.org/abs/1608.00859; Carreira and Zisserman,
    "Quo vadis, action recognition?" (2017), https://arxiv.org/abs/1705.07750.
    """

    takes: ClassVar[Takes] = Takes(Images, ClassIndex, ClassSet, Number)
    excluded_options: ClassVar[Dict[str, str]] = {
        **EXCLUDED_OPTIONS,
        "nclass": "the number of classes comes from the dataset",
        "num_segments": "the number of frames is dataset.frames",
    }

    name: str = "resnet18_v1b_kinetics400"
    """GluonCV's name, e.g. resnet50_v1b_kinetics400 (TSN) or i3d_resnet50_v1_kinetics400 (I3D)."""
    options: Dict[str, Any] = {}
    """Further arguments of GluonCV's network, e.g. {dropout_ratio: 0.8}."""

    @pydantic.field_validator("name")
    @classmethod
    def _known_name(cls, name: str) -> str:
        if name not in VIDEO_NAMES:
            raise ValueError(no_such_network("video", name, VIDEO_NAMES))
        return name

    def input_shape(self, native: Shape) -> Shape:
        """Returns the shape of the dataset's samples."""
        return native

    def build(self, num_classes: int, input_shape: Shape) -> gluon.HybridBlock:
        """Returns the network, uninitialized.

        Raises:
            ConfigError: the input holds no whole frames in colour, or too few; or GluonCV refuses an option.
        """
        channels = input_shape[0]
        if channels % 3:
            raise ConfigError(
                f"model=gluoncv_video takes frames of 3 channels each, and samples have {channels} channels. Type "
                "dataset=video_folder, or choose a model for images, e.g. model=gluoncv."
            )
        frames = channels // 3
        if self.name in INFLATED_NAMES and frames < LEAST_FRAMES:
            raise ConfigError(
                f"model.name={self.name} halves the number of frames three times, and samples have {frames}. Type "
                f"dataset.frames={LEAST_FRAMES} or more, e.g. dataset.frames=32 dataset.sampling=clip."
            )

        def build() -> gluon.HybridBlock:
            from mxtrain.vision.video.networks import build_inflated, build_segments

            if self.name in INFLATED_NAMES:
                return build_inflated(self.name, num_classes, frames, dict(self.options))
            depth = int(self.name[len("resnet") :].partition("_")[0])
            return build_segments(depth, num_classes, frames, dict(self.options))

        return self._built(self.name, build)
