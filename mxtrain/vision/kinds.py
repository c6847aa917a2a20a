"""Kinds of samples and targets of images."""

from __future__ import annotations

from typing import ClassVar

from mxtrain.types.kinds import Images, TargetKind


class Videos(Images):
    """Frames of videos, (B, 3 T, H, W): T frames after each other, three channels each."""

    name: ClassVar[str] = "videos"


class ClassMap(TargetKind):
    """The class of each pixel, (B, H, W)."""


class Boxes(TargetKind):
    """Classes and boxes of the objects in an image, (B, M, D); see `detection.boxes.Column`."""


class Masks(TargetKind):
    """Classes, boxes and masks of the objects in an image, (B, M, R); see `detection.mask_rows`."""


class KeyPoints(TargetKind):
    """Positions of the key points of an object, (B, J, 3)."""


class Identity(TargetKind):
    """The identity that an image shows, such as a person, (B,). Networks embed images, (B, D); those of one identity
    are close."""
