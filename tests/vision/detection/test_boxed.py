"""The input of a trained detector cannot be changed."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Type

import pytest
from boxed_files import NAMES, write_voc

from mxtrain.errors import CheckpointError, ConfigError
from mxtrain.types.kinds import TargetKind
from mxtrain.vision.detection.centernet_fpn import CenterNetFPN
from mxtrain.vision.detection.digit_scenes import DigitScenes
from mxtrain.vision.detection.gluoncv_centernet import GluonCVCenterNet
from mxtrain.vision.detection.ssd import SSD
from mxtrain.vision.detection.voc import Voc
from mxtrain.vision.detection.yolo3 import YOLO3
from mxtrain.vision.images.settings import Decoding
from mxtrain.vision.kinds import Boxes, ClassMap, Masks


class LargeInput(CenterNetFPN):
    def input_shape(self, native):
        return (3, 300, 300)


def test_unsuitable_image_size_is_refused_with_a_suitable_one(tmp_path):
    dataset = Voc(root=str(write_voc(tmp_path / "VOC2007")), classes=NAMES, image_size=[32, 48])
    splits = dataset.open()
    assert dataset.infer_signature(splits, CenterNetFPN()).shape == (3, 32, 48)
    with pytest.raises(ConfigError, match=r"of 300 x 300, and they are brought to 32 x 48.*image_size=\[300,300\]"):
        dataset.infer_signature(splits, LargeInput())


def test_checkpoint_records_image_fitting(tmp_path):
    root = str(write_voc(tmp_path / "VOC2007"))
    trained = Voc(root=root, classes=NAMES, image_size=[32, 48], fit="pad", channels=1, window="full")
    signature = trained.infer_signature(trained.open(), CenterNetFPN())
    assert signature.decoding == Decoding((1, 32, 48), window="full", fit="pad")
    plain = Voc(root=root, classes=NAMES)
    restored, _ = plain.restored(signature, ["dataset.root"], "run")
    assert (restored.fit, restored.image_size, restored.window) == ("pad", [32, 48], "full")
    with pytest.raises(ConfigError, match="dataset.fit=stretch: .* trained with dataset.fit=pad .*Leave it out"):
        plain.restored(signature, ["dataset.fit"], "run")


def voc(tmp_path, **settings):
    return Voc(root=str(write_voc(tmp_path / "VOC2007")), classes=NAMES, **settings)


@pytest.mark.parametrize(
    "model, side",
    [
        (SSD(name="ssd_300_vgg16_atrous"), 300),
        (SSD(name="ssd_512_resnet50_v1_voc"), 512),
        (YOLO3(), 416),
        (GluonCVCenterNet(), 512),
        (SSD(name="ssd_custom", backbone="resnet18_v1"), 64),
        (CenterNetFPN(), 64),  # as large as the images
    ],
)
def test_a_network_has_the_size_that_it_was_published_for(tmp_path, model, side):
    dataset = voc(tmp_path).for_run(TargetKind, model)
    assert dataset.infer_signature(dataset.open(), model).shape == (3, side, side)
    assert voc(tmp_path / "other", image_size=[64, 96]).for_run(TargetKind, model).image_size == [64, 96]


def test_scenes_keep_their_size():
    scenes = DigitScenes().for_run(Boxes)
    assert scenes.for_run(TargetKind, YOLO3()).image_size == [64, 64]


def test_a_run_is_not_continued_in_another_size(tmp_path):
    dataset = voc(tmp_path, image_size=[32, 48])
    signature = dataset.infer_signature(dataset.open(), CenterNetFPN())
    dataset.check_compatible(signature, signature, "run")
    before = replace(signature, shape=(3, 64, 96))
    message = r"images of 3x64x96, and now .* 3x32x48. Type dataset.image_size=\[64,96\]"
    with pytest.raises(CheckpointError, match=message):
        dataset.check_compatible(signature, before, "run")


@pytest.mark.parametrize(
    "sizes",
    ["64", [[64, 64, 64]], [0], [True], [[64]], ["a"], [100_000]],
)
def test_wrong_sizes_are_refused(sizes):
    with pytest.raises(ValueError, match="image_sizes"):
        Voc(image_sizes=sizes)


def test_samples_in_several_sizes(tmp_path):
    dataset = voc(tmp_path, image_size=32, image_sizes=[64, [32, 96]])
    splits = dataset.open()
    signature = dataset.infer_signature(splits, CenterNetFPN())
    found = dataset.scaled(splits.train, signature)
    assert [(source.shape, sign.shape) for source, sign in found] == [((3, 64, 64),) * 2, ((3, 32, 96),) * 2]
    assert all(sign.decoding == signature.decoding for _, sign in found) and signature.shape == (3, 32, 32)
    assert not voc(tmp_path / "one").scaled(splits.train, signature)


@pytest.mark.parametrize("target", [ClassMap, Boxes, Masks])
def test_digit_scenes_are_not_scaled_for_networks_that_scale_pixels_themselves(target: Type[TargetKind]) -> None:
    class ScalingModel(CenterNetFPN):
        takes_pixels: ClassVar[bool] = True  # type: ignore[misc]  # a property of the base class

    dataset = DigitScenes(num_train=7).for_run(target, ScalingModel())
    assert isinstance(dataset, DigitScenes) and dataset.num_train == 7
    assert dataset.mean == [0.0] * 3 and dataset.std == [1 / 255] * 3
    fitted = DigitScenes().for_run(target, CenterNetFPN())
    assert isinstance(fitted, DigitScenes) and fitted.mean == "auto"
