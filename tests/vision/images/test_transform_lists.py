"""Lists of transforms in the description: what a list means, what is refused, and what stays as it was."""

import hashlib
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mxtrain.errors import ConfigError
from mxtrain.vision.classification.digits import Digits
from mxtrain.vision.detection.box_augment import BoxAugment
from mxtrain.vision.detection.coco import Coco
from mxtrain.vision.images import transforms
from mxtrain.vision.images.sample_reader import SampleReader
from mxtrain.vision.images.settings import Augment, FileAugment
from mxtrain.vision.images.transforms.base import Transform
from mxtrain.vision.images.transforms.chain import TRANSFORMS, TransformChain, find_transforms
from mxtrain.vision.images.transforms.geometry import Flip, ResizedCrop, Rotation
from mxtrain.vision.pose.key_point_augment import KeyPointAugment
from mxtrain.vision.segmentation.masked_images import JointAugment


class Inverted(Transform):
    """A transform of a user's own."""

    def __call__(self, image, draw):
        return image.with_pixels(255 - image.pixels)


MODULE = """
from typing import ClassVar

from mxtrain.vision.images.transforms.geometry import Flip


class Sepia(Flip):
    name: ClassVar[str] = "sepia"


class Helper(Flip):
    name: ClassVar[str] = ""
"""


def test_transforms_of_all_modules_are_found_by_name(tmp_path: Path, monkeypatch: Any) -> None:
    assert {TRANSFORMS["crop"].__name__, TRANSFORMS["auto_augment"].__name__} == {"PaddedCrop", "AutoAugment"}
    assert len(TRANSFORMS) == 13 and find_transforms() == TRANSFORMS
    (tmp_path / "sepia.py").write_text(MODULE)
    monkeypatch.setattr(transforms, "__path__", [*transforms.__path__, str(tmp_path)])
    monkeypatch.setitem(sys.modules, f"{transforms.__name__}.sepia", None)  # removed again after the test
    del sys.modules[f"{transforms.__name__}.sepia"]
    assert find_transforms().keys() - TRANSFORMS.keys() == {"sepia"}


OWN = f"{__name__}.Inverted"
IMAGE = np.random.RandomState(0).randint(0, 256, (40, 3, 16, 16)).astype(np.uint8)
LABEL = np.arange(40, dtype=np.int32)


class Memory:
    samples_per_task = 0
    shape = (3, 16, 16)

    def __len__(self):
        return 40

    def fetch(self, index_B, *, seed, epoch, train):
        return IMAGE[index_B].copy(), LABEL[index_B]


def read(augment, index=(5, 1, 39, 45, 7, 20), train=True):
    """45 is sample 5 a second time."""
    reader = SampleReader(
        Memory(),
        None,
        augment=augment,
        chain=TransformChain(augment.transforms or ()),
        fill_C=np.zeros(3, np.uint8),
        num_classes=40,
        seed=3,
        train=train,
    )
    return reader.read(np.array(index), epoch=2, partner_N=None)


@pytest.mark.parametrize(
    "settings, expected",
    [
        ({"crop_padding": 2}, "666bcdb5585879b7"),
        ({"flip": True}, "056828a32363da55"),
        ({"cutout": 5}, "d7a8d5d2699e5965"),
        ({"mixup": 0.4, "flip": True}, "f960aa091d0c611d"),
        ({"cutmix": 1.0}, "b05e794ee1311aa0"),
        ({"mixup": 0.2, "cutmix": 1.0, "crop_padding": 3, "flip": True, "cutout": 4}, "4bd3d9853de016a7"),
    ],
)
def test_fixed_settings_give_the_bits_of_before(settings, expected):
    """Hashes of the version that had no lists."""
    batch = read(Augment(**settings))
    digest = hashlib.sha256()
    for array in (batch.image_BCHW, *batch.targets):
        digest.update(np.ascontiguousarray(array).tobytes())
    assert digest.hexdigest()[:16] == expected


def test_list_replaces_fixed_settings():
    described = Digits(augment=Augment.model_validate({"crop_padding": 4, "flip": True, "transforms": ["flip"]}))
    assert described.augment == Augment(transforms=(Flip(),)) and described.augment.crop_padding == 0
    empty = Augment.model_validate({"flip": True, "transforms": []})
    np.testing.assert_array_equal(read(empty, (5, 1)).image_BCHW, IMAGE[[5, 1]])
    assert Augment.model_validate({"flip": True, "transforms": None}).flip


def test_a_fixed_setting_beside_a_list_is_refused():
    kept = {"crop_padding": 1, "flip": False, "mixup": 0.0, "transforms": ["flip"]}  # those of the dataset's file
    assert Digits.model_validate({"augment": kept}).augment.transforms == (Flip(),)
    with pytest.raises(ValueError, match=r"augment.mixup=0.2 has no effect .* type dataset.augment.mixup=0.0"):
        Digits.model_validate({"augment": {**kept, "mixup": 0.2}})
    boxes = {"min_visible": 0.4, "transforms": ["flip"]}
    assert Coco.model_validate({"augment": boxes}).augment.min_visible == 0.4


def test_a_list_is_carried_out_in_order_in_training_alone():
    forms = ["flip", {"rotation": {"degrees": 30}}, {"_target_": OWN}]
    augment = Augment.model_validate({"transforms": forms})
    assert [type(one) for one in augment.transforms] == [Flip, Rotation, Inverted]
    batch = read(augment)
    assert (batch.image_BCHW[0] != batch.image_BCHW[3]).any()  # the same sample, drawn twice
    np.testing.assert_array_equal(read(augment, (39, 5)).image_BCHW, batch.image_BCHW[[2, 0]])
    np.testing.assert_array_equal(read(augment, (39, 5), train=False).image_BCHW, IMAGE[[39, 5]])
    inverted = Augment.model_validate({"transforms": ["flip", {"_target_": OWN}]})
    flipped = Augment.model_validate({"transforms": ["flip"]})
    np.testing.assert_array_equal(read(inverted).image_BCHW, 255 - read(flipped).image_BCHW)


def test_mixing_is_applied_last():
    augment = Augment.model_validate({"transforms": ["flip", {"cutmix": {"alpha": 0.5}}, "mixup"]})
    assert augment.mixes and (augment.cutmix, augment.mixup) == (0.5, 0.2)
    batch = read(augment)
    np.testing.assert_allclose(batch.targets[0].sum(axis=1), 1, rtol=1e-5)


def test_crop_of_a_file_is_applied_first():
    first = FileAugment.model_validate({"transforms": [{"resized_crop": {"scale": [0.1, 0.5]}}, "flip"]})
    assert first.crop_scale == [0.1, 0.5] and first.transforms == (Flip(),)
    later = FileAugment.model_validate({"transforms": ["flip", {"resized_crop": {"scale": [0.1, 0.5]}}]})
    assert later.crop_scale == [1.0, 1.0] and isinstance(later.transforms[1], ResizedCrop)
    in_memory = Augment.model_validate({"transforms": ["resized_crop"]})
    assert isinstance(in_memory.transforms[0], ResizedCrop)


def test_lists_of_other_tasks():
    boxes = BoxAugment.model_validate(
        {
            "transforms": [
                {"mosaic": {"share": 0.3, "epochs": 7}},
                {"mixup": {"epochs": 7}},
                "expand",
                "box_crop",
                "flip",
            ],
            "min_visible": 0.4,
            "flip": True,
        }
    )
    assert (boxes.mosaic, boxes.mixup, boxes.mix_epochs, boxes.expand, boxes.min_visible) == (0.3, 1.5, 7, 4.0, 0.4)
    assert not boxes.flip and not boxes.brightness and boxes.transforms == (Flip(),) and not boxes.mixes
    off = BoxAugment.model_validate({"transforms": []})
    shares = off.draws(0, 0, 0)
    assert off.window(shares, (40, 30), np.zeros((0, 4))) == (0.0, 0.0, 40.0, 30.0)
    assert off.recoloured(shares, IMAGE[0]) is IMAGE[0] or np.array_equal(off.recoloured(shares, IMAGE[0]), IMAGE[0])
    masks = JointAugment.model_validate({"transforms": [{"zoom": {"scale": [0.7, 1.5]}}, "flip"]})
    assert masks.scale == [0.7, 1.5] and not masks.flip and masks.transforms == (Flip(),)
    points = KeyPointAugment.model_validate({"transforms": [{"cut_out": {"rotate_share": 0.5}}]})
    assert (points.scale, points.rotate, points.rotate_share, points.flip) == (0.25, 30.0, 0.5, False)
    assert Coco(augment=boxes).annotation_class()._min_visible == 0.1


@pytest.mark.parametrize(
    "kind, given, said",
    [
        (Augment, "flip", "this is a list"),
        (Augment, ["flp"], "Did you mean 'flip'?"),
        (Augment, [{"flip": {"horizontl": 1}}], "Did you mean 'dataset.augment.transforms.0.flip.horizontal'?"),
        (Augment, ["flip", {"rotation": {"degrees": -1}}], "transforms.1.rotation.degrees=-1: should be greater"),
        (Augment, [{"flip": {}, "crop": {}}], "a transform is a name"),
        (Augment, [3], "a transform is a name"),
        (Augment, [{"flip": 3}], "a transform is a name"),
        (Augment, [{"_target_": "no_such_module_here.A"}], "there is no module"),
        (Augment, [{"_target_": "mxtrain.types.Batch"}], "must be a subclass of"),
        (Augment, [{"_target_": OWN, "strength": 1}], "there is no 'dataset.augment.transforms.0.strength'"),
        (Augment, ["mixup", "flip"], "flip cannot come after mixup"),
        (Augment, ["mixup", "mixup"], "more than once"),
        (Augment, [{"_target_": f"{Transform.__module__}.Transform"}], "with a method __call__(image, draw)"),
        (Augment, ["resize"], "size must be given: {resize: {size: ...}}"),
        (JointAugment, ["mixup"], "this dataset has no such transform"),
        (JointAugment, ["flip", "zoom"], "zoom cannot come after flip, as zoom is carried out while an image is read"),
        (BoxAugment, ["box_crop", "expand"], "expand cannot come after box_crop"),
        (BoxAugment, [{"mosaic": {"epochs": 3}}, "mixup"], "two transforms differ in mix_epochs"),
        (Augment, ["flip"] * 101, "at most 100"),
    ],
)
def test_wrong_lists_are_refused(kind, given, said):
    with pytest.raises(ConfigError) as raised:
        kind.model_validate({"transforms": given})
    assert said in str(raised.value)


@pytest.mark.slow
def test_fixed_settings_match_the_class_without_a_line_in_yaml(describe_run):
    assert describe_run("dataset=synthetic", "dataset.augment.flip=true").dataset.augment == Augment(flip=True)
