"""Random streams of images."""

from __future__ import annotations

from mxtrain.types import NamedInt


class VisionDraw(NamedInt):
    """Random streams of images; see `mxtrain.data.loading.randomness.Draw`."""

    CROP_TOP = 2
    CROP_LEFT = 3
    FLIP = 4
    CUTOUT_TOP = 5
    CUTOUT_LEFT = 6
    PARTNER = 7
    MIX_KIND = 8
    MIX_TOP = 9
    MIX_LEFT = 10
    RESIZED_AREA = 11
    RESIZED_ASPECT = 12
    RESIZED_TOP = 13
    RESIZED_LEFT = 14
    SCALE = 19
    SCENE = 20
    """And 167 above it: what a made image holds."""
    IMAGE_SIZE = 402
    """By the number of a batch: in which size its images enter the network."""
    BOX_SAMPLE = 500
    """And 4 above it: streams of an image with boxes, and of those beside it in a mosaic."""
    KEY_POINTS = 600
    """And 19 above it: how an object with key points is cut out."""
    TARGET_SAMPLE = 700
    REGION_SAMPLE = 701
    TRANSFORM = 760
    """And 99 above it, one for each place in a list of transforms."""
    CORRUPTION = 900
    """And 99 above it, one for each way to corrupt a sample."""
