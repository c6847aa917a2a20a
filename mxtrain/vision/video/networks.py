"""Builds GluonCV's networks for videos. Imports MXNet and GluonCV.

Legend: B batch, T frames, C = 3 T channels, H height, W width.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Dict

from mxtrain.engine.backend import gluon
from mxtrain.vision.networks import gluoncv as silenced_gluoncv  # noqa: F401  # before anything of GluonCV

if TYPE_CHECKING:
    from mxtrain.types.annotations import Array, OperatorModule


class ClipInput(gluon.HybridBlock):
    """Mixed into the class of a network, so that it takes (B, 3 T, H, W). A block around it would change the names of
    its parameters, which are those of GluonCV's files."""

    num_frames: int

    def hybrid_forward(self, F: OperatorModule, x_BCHW: Array) -> Array:
        return super().hybrid_forward(F, self.arranged(F, x_BCHW))  # type: ignore[misc]  # of the network's class

    def arranged(self, F: OperatorModule, x_BCHW: Array) -> Array:
        """Returns the input of GluonCV's network."""
        raise NotImplementedError


class SegmentInput(ClipInput):
    """For networks that take frames, (B T, 3, H, W)."""

    def arranged(self, F: OperatorModule, x_BCHW: Array) -> Array:
        return F.reshape(x_BCHW, shape=(-1, 3, 0, 0))


class VolumeInput(ClipInput):
    """For networks that take volumes, (B, 3, T, H, W)."""

    def arranged(self, F: OperatorModule, x_BCHW: Array) -> Array:
        x_BT3HW = F.reshape(x_BCHW, shape=(0, -4, self.num_frames, 3, 0, 0))
        return F.transpose(x_BT3HW, axes=(0, 2, 1, 3, 4))


def _taking_clips(network: gluon.HybridBlock, form: type, num_frames: int) -> gluon.HybridBlock:
    own = type(network)
    network.__class__ = type(own.__name__, (form, own), {})
    network.num_frames = num_frames
    return network


def build_segments(depth: int, num_classes: int, num_frames: int, options: Dict[str, Any]) -> gluon.HybridBlock:
    """Builds a temporal segment network; options of `ActionRecResNetV1b`."""
    from gluoncv.model_zoo.action_recognition.actionrec_resnetv1b import ActionRecResNetV1b

    # GluonCV's functions by name always download weights of ImageNet for this network.
    arguments = {"pretrained_base": False, "num_segments": num_frames, **options}
    return _taking_clips(ActionRecResNetV1b(depth, num_classes, **arguments), SegmentInput, num_frames)


def build_inflated(name: str, num_classes: int, num_frames: int, options: Dict[str, Any]) -> gluon.HybridBlock:
    """Builds an inflated 3D network by its name; options of GluonCV's function."""
    from gluoncv.model_zoo import get_model

    network = get_model(name, nclass=num_classes, pretrained_base=False, **options)
    return _taking_clips(network, VolumeInput, num_frames)
