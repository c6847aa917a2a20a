"""Kinds of targets of images."""

from __future__ import annotations

from mxtrain.types.kinds import TargetKind


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
