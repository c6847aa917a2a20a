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
    """168 streams: content of a generated image."""
    IMAGE_SIZE = 402
    """By batch number instead of sample: size of the images in training."""
    BOX_SAMPLE = 500
    """5 streams: augmentation of an image with boxes, and of the other images of a mosaic."""
    KEY_POINTS = 600
    """20 streams: crop of an object with key points."""
    TARGET_SAMPLE = 700
    REGION_SAMPLE = 701
    CLASS = 703
    """By batch number: classes that its samples are compared with."""
    CLASS_TURN = 704
    TRANSFORM = 760
    """100 streams, one for each position in a list of transforms."""
    CORRUPTION = 900
    """100 streams, one for each kind of corruption."""
    FRAME = 1100
    """64 streams, one for each frame of a video."""
