"""Images with masks as users have them: plain folders, VOC, ADE20K and Cityscapes."""

import json
import os
import re
import shutil
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pytest
from PIL import Image
from pydantic import ValidationError

from mxtrain.errors import ConfigError, DataError
from mxtrain.vision.images.settings import Decoding
from mxtrain.vision.segmentation import masked_files, masked_images
from mxtrain.vision.segmentation.ade20k import Ade20k
from mxtrain.vision.segmentation.cityscapes import LABELS, Cityscapes
from mxtrain.vision.segmentation.segmentation_folder import SegmentationFolder
from mxtrain.vision.segmentation.signature import MaskSignature
from mxtrain.vision.segmentation.voc_segmentation import VOC_NAMES, VocSegmentation

VALUES = {"folder": (0, 1, 255), "voc": (0, 20, 255), "ade20k": (0, 1, 150), "cityscapes": (0, 7, 33)}
CLASSES = {"folder": (0, 1, -1), "voc": (0, 20, -1), "ade20k": (-1, 0, 149), "cityscapes": (-1, 0, 18)}


def write_pair(picture, mask, values, number=0):
    """An image and its mask: the stripe of the three values that is the image's colour, too."""
    for path in (picture, mask):
        path.parent.mkdir(parents=True, exist_ok=True)
    stripe_HW = np.tile(np.repeat([0, 1, 2], 8), (20 + number, 1))
    Image.fromarray(np.repeat((stripe_HW * 100)[..., None], 3, axis=2).astype(np.uint8)).save(picture)
    image = Image.fromarray(np.array(values, np.uint8)[stripe_HW])
    if "voc" in str(mask):
        image.putpalette([number % 256 for number in range(768)])
    image.save(mask)


def write_folder(root, names=("a", "b", "c", "d", "e", "f"), images="images", masks="masks"):
    for number, name in enumerate(names):
        write_pair(root / images / f"{name}.jpg", root / masks / f"{name}.png", VALUES["folder"], number)
    (root / "classes.txt").write_text("background\n\n cat \n")
    return root


def write_voc(root, train=("a", "b", "c"), val=("d", "e")):
    for number, name in enumerate([*train, *val]):
        write_pair(
            root / "JPEGImages" / f"{name}.jpg", root / "SegmentationClass" / f"{name}.png", VALUES["voc"], number
        )
    lists = root / "ImageSets" / "Segmentation"
    lists.mkdir(parents=True)
    (lists / "train.txt").write_text("\n".join(train) + "\n\n")
    (lists / "val.txt").write_text("".join(f"{name}  1\n" for name in val))
    (lists / "trainval.txt").write_text("\n".join([*train, *val]))
    (lists / "aug.txt").write_text("".join(f"/JPEGImages/{n}.jpg /SegmentationClass/{n}.png\n" for n in train))
    shutil.copy(root / "JPEGImages" / f"{train[0]}.jpg", root / "JPEGImages" / "unused.jpg")  # as most are
    return root


def write_ade20k(root, counts=(3, 2)):
    for part, count in zip(("training", "validation"), counts):
        for number in range(count):
            name = f"ADE_{part}_{number:08}"
            write_pair(
                root / f"images/{part}/{name}.jpg", root / f"annotations/{part}/{name}.png", VALUES["ade20k"], number
            )
    lines = ["Idx\tRatio\tTrain\tVal\tName"] + [f"{n}\t0.1\t5\t5\tthing {n}, object {n}" for n in range(1, 151)]
    lines[131], lines[142] = "131\t0\t1\t1\tscreen, silver screen", "142\t0\t1\t1\tscreen, monitor"
    (root / "objectInfo150.txt").write_text("\n".join(lines) + "\n")
    return root


def write_cityscapes(root, splits=("train", "val"), values=VALUES["cityscapes"]):
    for split in splits:
        for number in range(2):
            name = f"{split}/aachen/aachen_{number:06}_000019"
            mask = root / "gtFine" / f"{name}_gtFine_labelIds.png"
            write_pair(root / "leftImg8bit" / f"{name}_leftImg8bit.png", mask, values, number)
            Image.new("RGB", (5, 5)).save(root / "gtFine" / f"{name}_gtFine_color.png")
    return root


def opened(root, kind="folder"):
    make = {"folder": SegmentationFolder, "voc": VocSegmentation, "ade20k": Ade20k, "cityscapes": Cityscapes}[kind]
    return make(root=str(root), image_size=[16, 24])


WRITERS = {"folder": write_folder, "voc": write_voc, "ade20k": write_ade20k, "cityscapes": write_cityscapes}


@pytest.mark.parametrize("kind", WRITERS)
def test_masks_become_classes(tmp_path, kind):
    splits = opened(WRITERS[kind](tmp_path / kind), kind).open()
    stripe = np.array(CLASSES[kind])[np.repeat([0, 1, 2], 8)]
    for source in (splits.train, splits.val):
        image, mask, sizes = source.fetch(np.arange(len(source)), seed=0, epoch=0, train=False)
        assert (sizes[:, 1] == 24).all() and (sizes[:, 0] >= 20).all() and image.shape[1:] == (3, 16, 24)
        for mask_HW, (_, _, height, width) in zip(mask, sizes):
            columns = ((np.arange(width) + 0.5) * 24 / width).astype(int)
            assert (mask_HW[:height, :width] == stripe[columns]).all() and (mask_HW[:, width:] == -1).all()
        cut, cut_mask, _ = source.fetch(np.arange(len(source)), seed=0, epoch=0, train=True)
        assert cut.shape[1:] == (3, 16, 24) and set(np.unique(cut_mask)) <= {-1, *CLASSES[kind]}
    assert len(splits.class_names) == {"folder": 2, "voc": 21, "ade20k": 150, "cityscapes": 19}[kind]
    assert splits.decoding == Decoding((3, 16, 24), frame=(16, 24)) and len(splits.mask_values) == len(
        splits.class_names
    )
    # What is predicted is written with the values of the dataset's own masks.
    told = {value: CLASSES[kind][place] for place, value in enumerate(VALUES[kind]) if CLASSES[kind][place] >= 0}
    assert all(splits.mask_values[number] == value for value, number in told.items())


def test_names_and_sizes_of_the_known_datasets(tmp_path):
    assert VOC_NAMES[0] == "background" and VOC_NAMES[15] == "person" and VOC_NAMES[20] == "tvmonitor"
    assert (
        len(LABELS) == 19 and list(LABELS.values())[:3] == ["road", "sidewalk", "building"] and LABELS[33] == "bicycle"
    )
    root = write_ade20k(tmp_path / "ADEChallengeData2016")
    for given in (root, tmp_path):
        splits = opened(given, "ade20k").open()
        assert (len(splits.train), len(splits.val), splits.test) == (3, 2, None)
    assert splits.class_names[0] == "thing 1" and splits.class_names[130] == "screen, silver screen"
    (root / "objectInfo150.txt").unlink()
    assert opened(root, "ade20k").open().class_names[149] == "150"
    (root / "objectInfo150.txt").write_text("1\tx\n")
    with pytest.raises(DataError, match="objectInfo150.txt' must hold one line for each class from 1 to 150.* 1 such"):
        opened(root, "ade20k").open()


def test_a_folder_is_split_by_fraction_or_by_its_own_folders(tmp_path):
    root = write_folder(tmp_path / "plain")
    splits = SegmentationFolder(root=str(root), val_fraction=0.34, test_fraction=0.17).open()
    assert [len(part) for part in (splits.train, splits.val, splits.test)] == [3, 2, 1]
    assert splits.class_names == ["background", "cat"] and splits.shape == (3, 32, 32)
    held = lambda seed: SegmentationFolder(root=str(root), val_fraction=0.34, split_seed=seed).open().val.index_N  # noqa: E731
    assert np.array_equal(held(0), held(0)) and any(not np.array_equal(held(0), held(seed)) for seed in range(1, 5))
    for number, (images, masks) in enumerate((("{}/images", "{}/masks"), ("images/{}", "masks/{}"))):
        root = tmp_path / f"own{number}"
        for split, names in (("train", "abc"), ("val", "de"), ("test", "f")):
            write_folder(root, names, images.format(split), masks.format(split))
        splits = opened(root).open()
        assert [len(part) for part in (splits.train, splits.val, splits.test)] == [3, 2, 1]
        assert Path(splits.val.location(0).file).stem == "d" and Path(splits.val.masks[1]).stem == "e"
        shutil.rmtree(root / images.format("val"))
        with pytest.raises(DataError, match="no folder '.*val.*' of images"):
            opened(root).open()
        shutil.rmtree(root / masks.format("val"))
        splits = SegmentationFolder(root=str(root), val_fraction=0.34).open()
        assert [len(part) for part in (splits.train, splits.val, splits.test)] == [2, 1, 1]


@pytest.mark.parametrize(
    "images, masks",
    [
        ("{}/images", "{}/masks"),
        ("images/{}", "masks/{}"),
        ("{}/Images", "{}/Labels"),
        ("imgs/{}", "annotations/{}"),
    ],
)
def test_usual_names_of_splits(tmp_path, images, masks):
    for split, names in (("Training", "abc"), ("valid", "de"), ("Test", "f")):
        write_folder(tmp_path, names, images.format(split), masks.format(split))
    splits = opened(tmp_path).open()
    assert [len(part) for part in (splits.train, splits.val, splits.test)] == [3, 2, 1]
    write_folder(tmp_path, "g", images.format("dev"), masks.format("dev"))
    with pytest.raises(DataError, match="dev/ and valid/, and each of these names means the split val"):
        opened(tmp_path).open()


def test_two_folders_of_masks_are_refused(tmp_path):
    write_folder(write_folder(tmp_path), masks="labels")
    with pytest.raises(DataError, match="holds labels/ and masks/"):
        opened(tmp_path).open()


def test_images_may_be_in_subfolders_and_share_a_mask(tmp_path):
    root = write_folder(tmp_path, ["x/a", "y/a", "b"])
    (root / "masks" / "y" / "a.png").unlink()
    (root / "masks" / "y" / "a.png").symlink_to(root / "masks" / "x" / "a.png")
    write_pair(root / "images/y/a.jpg", tmp_path / "spare.png", VALUES["folder"])  # as large as x/a
    source = SegmentationFolder(root=str(root), val_fraction=0.34).open().train.source
    assert [Path(path).relative_to(root / "masks").as_posix() for path in source.masks] == [
        "b.png",
        "x/a.png",
        "y/a.png",
    ]
    assert source.mask(2, (24, 20)).tolist() == source.mask(1, (24, 20)).tolist()


def change(path, how):
    return lambda root: how(root / path)


def save(mode, size=(24, 20), value=0, kind="PNG"):
    return lambda path: Image.new(mode, size, value).save(path, kind)


FOLDER_MISTAKES = [
    (change("images/c.jpg", Path.unlink), "masks/c.png' is the mask of no image (1 of 6 masks without)"),
    (
        change("masks/c.png", Path.unlink),
        "images/c.jpg' has no mask: there is no '{root}/masks/c.png' (1 of 6 images",
    ),
    (change("images", shutil.rmtree), "there is no folder '{root}/images'"),
    (change("masks", shutil.rmtree), "there is no folder '{root}/masks'"),
    (lambda root: [path.unlink() for path in (root / "masks").iterdir()], "masks' holds no masks: save each as PNG"),
    (
        lambda root: [path.rename(path.with_suffix(".jpg")) for path in (root / "masks").iterdir()],
        "JPEG and WebP change",
    ),
    (lambda root: [path.unlink() for path in (root / "images").iterdir()], "images' holds no images"),
    (lambda root: shutil.copy(root / "images/a.jpg", root / "images/a.jpeg"), "are images with the same name"),
    (change("classes.txt", Path.unlink), "type e.g. 'dataset.classes=[background,cat]'"),
    (change("classes.txt", lambda path: path.write_text("cat\n")), "must name at least two classes"),
    (change("classes.txt", lambda path: path.write_text("a\nb\na\n")), "names the class 'a' twice"),
    (
        change("classes.txt", lambda path: path.write_text("\n".join(map(str, range(256))))),
        "the value 255 is that of the",
    ),
    (change("masks/a.png", save("RGB", value=(1, 2, 1))), "masks/a.png' cannot be read as a mask (it has colours"),
    (change("masks/a.png", save("L", kind="JPEG")), "JPEG changes values"),
    (
        change("masks/a.png", save("L", value=7)),
        "masks/a.png' holds the value 7, which is no class. Classes have 0, 1,",
    ),
    (change("masks/a.png", save("L", (9, 9))), "has 9 x 9 pixels, and its image '{root}/images/a.jpg' 24 x 20"),
    (change("masks/a.png", lambda path: path.write_bytes(b"x")), "masks/a.png' cannot be read as a mask"),
    (change("images/a.jpg", lambda path: path.write_bytes(b"x")), "images/a.jpg' cannot be read as an image"),
    (change("", shutil.rmtree), "there is no folder '{root}'. It must hold images/ and masks/"),
]


@pytest.mark.parametrize("spoil, said", FOLDER_MISTAKES, ids=[said[:40] for _, said in FOLDER_MISTAKES])
def test_problems_of_a_folder_are_named_before_training(tmp_path, spoil, said):
    root = write_folder(tmp_path / "data")
    spoil(root)
    with pytest.raises(DataError, match=re.escape(said.replace("{root}", str(root)))):
        opened(root).open()


def write_masks(root, *masks, mode="L"):
    """Images with masks of these values, 8 x 8."""
    for number, mask_HW in enumerate(masks):
        for folder in ("images", "masks"):
            (root / folder).mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8), (number, 0, 0)).save(root / "images" / f"{number}.png")
        mask = Image.fromarray(mask_HW.astype(np.uint8))
        if mode == "P":
            mask.putpalette([number % 256 for number in range(768)])
        (mask if mode != "RGB" else mask.convert("RGB")).save(root / "masks" / f"{number}.png")
    return root


@pytest.mark.parametrize("mode", ["L", "P", "RGB"])
def test_foreground_with_the_ignored_value_is_refused(tmp_path, check, mode):
    half_HW = np.repeat([[0] * 4 + [255] * 4], 8, axis=0)
    root = write_masks(tmp_path, *[np.roll(half_HW, shift, axis=1) for shift in range(6)], mode=mode)
    said = (
        "the class 'polyp', and 50% of the pixels have an ignored value (255). If 255 is the second class, "
        "type dataset.mask_values=[0,255] dataset.ignored=[]."
    )
    options = {"root": str(root), "classes": ["background", "polyp"], "image_size": [8, 8]}
    with pytest.raises(DataError, match=re.escape(said)):
        SegmentationFolder(**options, val_fraction=0.34).open()
    found = check(SegmentationFolder(**options, val_fraction=0.34))
    assert "nothing_to_learn" in {kind for kind, *_ in found}
    splits = SegmentationFolder(**options, val_fraction=0.34, mask_values=[0, 255], ignored=[]).open()
    assert set(np.unique(splits.train.fetch(np.arange(2), seed=0, epoch=0, train=False)[1])) == {0, 1}


def test_class_with_the_ignored_value_is_reported(tmp_path, caplog):
    thirds_HW = np.repeat([[0, 0, 1, 1, 1, 255, 255, 255]], 8, axis=0)
    root = write_masks(tmp_path, *[np.roll(thirds_HW, shift, axis=1) for shift in range(6)])
    SegmentationFolder(root=str(root), classes=["a", "b", "c"], val_fraction=0.34).open()
    assert "of the class 'c', and 38% of the pixels" in caplog.text


def test_ignored_values_in_few_masks_are_not_suspicious(tmp_path, caplog):
    empty_HW = np.zeros((8, 8))
    border_HW = np.pad(np.zeros((6, 6)), 1, constant_values=255)
    root = write_masks(tmp_path, empty_HW, empty_HW, border_HW, empty_HW, empty_HW + 1, empty_HW)
    SegmentationFolder(root=str(root), classes=["a", "b"], image_size=8, val_fraction=0.34).open()
    assert caplog.text == ""


def test_one_training_mask_without_ignored_pixels_is_accepted(tmp_path):
    root = write_masks(tmp_path, np.zeros((8, 8)))
    for split, values in (("train", np.zeros((8, 8))), ("val", np.eye(8))):
        write_masks(tmp_path / split, values)
        (tmp_path / split / "images").rename(root / "images" / split)
        (tmp_path / split / "masks").rename(root / "masks" / split)
    assert len(SegmentationFolder(root=str(root), classes=["a", "b"]).open().train) == 1


def test_masks_in_colour_are_refused_with_the_way_to_convert_them(tmp_path):
    root = write_masks(tmp_path, *[np.eye(8) for _ in range(4)])
    Image.new("RGB", (8, 8), (255, 0, 0)).save(root / "masks" / "0.png")
    with pytest.raises(
        DataError, match=r"it has colours, such as \(255, 0, 0\).*Name the colours of the classes in a table"
    ):
        SegmentationFolder(root=str(root), classes=["a", "b"], val_fraction=0.34).open()


def test_wrong_settings_of_a_folder(tmp_path):
    root = str(write_folder(tmp_path / "data"))
    for wrong in (
        {"classes": ["a", "a"]},
        {"mask_values": [1, 1]},
        {"mask_values": [-1]},
        {"mask_values": [70_000]},
        {"classes": ["a", "b"], "mask_values": [1, 2, 3]},
        {"eval_size": [9]},
        {"eval_size": [50_000, 50_000]},
        {"augment": {"scale": [2.0, 1.0]}},
        {"augment": {"scale": [0.0, 1.0]}},
        {"augment": {"crop_padding": 4}},
    ):
        with pytest.raises(ValidationError):
            SegmentationFolder(root=root, **wrong)
    with pytest.raises(ValidationError, match="eval_size is auto, one number or"):
        SegmentationFolder(eval_size="big")
    with pytest.raises(DataError, match="mask_values names 3 values, and there are 2 classes: background, cat"):
        SegmentationFolder(root=root, mask_values=[1, 2, 3]).open()
    with pytest.raises(DataError, match="the value 1 is that of the class 'cat', and dataset.ignored=.1."):
        SegmentationFolder(root=root, ignored=[1]).open()
    splits = SegmentationFolder(
        root=root, classes=["sky", "tree"], mask_values=[255, 1], ignored=[0], val_fraction=0.2
    ).open()
    assert splits.class_names == ["sky", "tree"] and splits.train.source.mask(0, (24, 20))[0, ::8].tolist() == [
        -1,
        1,
        0,
    ]


def test_an_image_is_trained_on_or_measured(tmp_path):
    for split in ("train", "val"):
        write_folder(tmp_path, ["a", "b"], f"{split}/images", f"{split}/masks")
    opened(tmp_path).open()
    (tmp_path / "val/images/b.jpg").unlink()
    (tmp_path / "val/images/b.jpg").symlink_to(tmp_path / "train/images/b.jpg")
    said = "train/images/b.jpg' and '.*val/images/b.jpg' are the same file, which belongs to train and to val: "
    with pytest.raises(DataError, match=said):
        opened(tmp_path).open()


@pytest.mark.parametrize("inner", ["", "VOC2012", "VOCdevkit/VOC2012", "VOC2007"])
def test_voc_is_found_in_each_folder_level(tmp_path, inner):
    write_voc(tmp_path / inner)
    splits = opened(tmp_path, "voc").open()
    assert (len(splits.train), len(splits.val), splits.test) == (3, 2, None)
    assert [Path(splits.val.location(index).file).stem for index in range(len(splits.val))] == ["d", "e"]


def test_voc_splits_are_read_from_their_lists(tmp_path):
    root = str(write_voc(tmp_path / "voc"))
    splits = VocSegmentation(root=root, train_split="aug", val_split="val", test_split="val2")
    with pytest.raises(DataError, match="dataset.test_split=val2: there is no file '.*val2.txt'. Did you mean 'val'"):
        splits.open()
    assert len(VocSegmentation(root=root, train_split="aug").open().train) == 3
    with pytest.raises(DataError, match=r"belongs to train and to val \(2 images\).*dataset.val_split=null"):
        VocSegmentation(root=root, train_split="trainval").open()
    held_out = VocSegmentation(root=root, train_split="trainval", val_split=None, val_fraction=0.4).open()
    assert (len(held_out.train), len(held_out.val)) == (3, 2)


@pytest.mark.parametrize(
    "spoil, said",
    [
        (change("JPEGImages/b.jpg", Path.unlink), "train.txt', line 2 names 'b', of which there is no image in"),
        (
            change("SegmentationClass/b.png", Path.unlink),
            "names 'b', of which there is no mask in '{root}/SegmentationClass'",
        ),
        (change("ImageSets/Segmentation/val.txt", lambda path: path.write_text("\n \n")), "val.txt' names no image"),
        (change("ImageSets/Segmentation/val.txt", Path.unlink), "dataset.val_split=val: there is no file"),
        (change("JPEGImages", shutil.rmtree), "holds no JPEGImages/. It must be VOCdevkit"),
        (change("SegmentationClass", shutil.rmtree), "There is no folder '{root}/SegmentationClass' of masks"),
    ],
)
def test_problems_of_voc_are_named(tmp_path, spoil, said):
    root = write_voc(tmp_path / "voc")
    spoil(root)
    with pytest.raises(DataError, match=re.escape(said.replace("{root}", str(root)))):
        opened(root, "voc").open()


def test_several_years_of_voc_need_a_choice(tmp_path):
    write_voc(tmp_path / "VOC2007")
    write_voc(tmp_path / "VOC2010")
    with pytest.raises(DataError, match="Several are there: VOC2007, VOC2010"):
        opened(tmp_path, "voc").open()
    write_voc(tmp_path / "VOC2012")
    assert "VOC2012" in opened(tmp_path, "voc").open().train.location(0).file


def test_cityscapes_test_split_is_used_if_its_masks_have_classes(tmp_path):
    root = write_cityscapes(tmp_path)
    assert opened(root, "cityscapes").open().test is None
    write_cityscapes(root, ["test"], (0, 1, 3))  # those that are published: nothing but what is ignored
    assert opened(root, "cityscapes").open().test is None
    write_cityscapes(root, ["test"])
    assert len(opened(root, "cityscapes").open().test) == 2
    (root / "gtFine/val/aachen/aachen_000001_000019_gtFine_labelIds.png").unlink()
    with pytest.raises(DataError, match="000001_000019_leftImg8bit.png' has no mask"):
        opened(root, "cityscapes").open()
    shutil.rmtree(root / "gtFine")
    with pytest.raises(DataError, match="holds no gtFine/"):
        opened(root, "cityscapes").open()


@pytest.mark.parametrize("values", [(0, 18, 255), (7, 8, 34)])
def test_train_ids_of_cityscapes_are_refused(tmp_path, values):
    """Values of *_labelTrainIds.png mean other classes."""
    root = write_cityscapes(tmp_path / "cityscapes", values=values)
    with pytest.raises(DataError, match=f"labelIds.png' holds the value {values[-1]}, which is no class"):
        opened(root, "cityscapes").open()


def test_start_up_reads_a_few_masks(tmp_path, monkeypatch):
    read = []
    monkeypatch.setattr(masked_files, "MAX_MASKS_READ", 2)
    own = masked_images.read_mask
    monkeypatch.setattr(masked_images, "read_mask", lambda content: read.append(1) or own(content))
    for kind, write in WRITERS.items():
        write(tmp_path / kind)
        before = len(read)
        opened(tmp_path / kind, kind).open()
        # The first mask of each split, and of the training split another one if the first does not have all classes.
        assert len(read) - before == {"folder": 1, "voc": 3, "ade20k": 3, "cityscapes": 3}[kind]


def test_a_checkpoint_keeps_the_size_of_the_frame_unless_another_is_typed(tmp_path):
    root = str(write_folder(tmp_path))
    dataset = SegmentationFolder(root=root, image_size=[16, 24], eval_size=[20, 40])
    decoding = dataset.decoding()
    names = ["background", "cat"]
    given = MaskSignature((3, 16, 24), [0.5] * 3, [0.2] * 3, names, decoding=decoding, mask_values=[0, 1])
    given = MaskSignature.from_json(json.loads(json.dumps(given.to_json())))
    assert given.decoding == Decoding((3, 16, 24), frame=(20, 40))
    later = SegmentationFolder(root=root)  # as its defaults are
    made, signature = later.restored(given, (), "a")
    assert signature == given and made.decoding() == decoding and made.open().decoding == decoding
    typed = SegmentationFolder(root=root, eval_size=[64, 48])
    made, signature = typed.restored(given, ["dataset.eval_size"], "a")
    assert made.decoding() == signature.decoding == Decoding((3, 16, 24), frame=(64, 48))
    assert made.open().val.source.frame == (64, 48)
    source, _ = made.open_inputs([f"{root}/images"], signature, False, {})
    assert source.frame == (64, 48) and source.masks is None
    _, signature = later.restored(given, ["dataset.eval_size"], "a")  # auto is typed
    assert signature.decoding.frame == (16, 24)
    for wrong in ({"image_size": [32, 32]}, {"mean": [0.1] * 3}, {"std": [0.1] * 3}, {"channels": 1}):
        with pytest.raises(ConfigError, match="the network was trained with"):
            SegmentationFolder(root=root, **wrong).restored(given, [f"dataset.{name}" for name in wrong], "a")


@pytest.mark.parametrize("kind", WRITERS)
def test_clean_data_pass_the_check(tmp_path, check, kind):
    # The helper writes the same images into both splits of some.
    assert check(opened(WRITERS[kind](tmp_path), kind), ignore=["duplicate_across_splits"]) == []
    counts = check.census.class_counts["train"]
    present = [label for label in CLASSES[kind] if label >= 0]
    assert set(np.flatnonzero(counts)) == set(present)
    assert (counts[present] == check.census.num_samples["train"]).all()


def test_a_check_lists_every_mask_that_is_wrong(tmp_path, check):
    root = write_folder(tmp_path, names="abcdefghijkl")
    save("L", value=7)(root / "masks/a.png")
    save("L", size=(9, 9), value=9)(root / "masks/b.png")
    (root / "masks/c.png").write_bytes((root / "masks/c.png").read_bytes()[:60])
    noise = np.random.RandomState(0).randint(0, 256, (22, 24, 3), np.uint8)
    Image.fromarray(noise).save(root / "images/c.jpg")
    (root / "images/c.jpg").write_bytes((root / "images/c.jpg").read_bytes()[:-300])  # its header is whole
    (root / "masks/d.png").unlink()
    (root / "images/e.jpg").unlink()
    found = check(opened(root))
    assert found[:2] == [("missing_counterpart", "images/d.jpg", None), ("missing_counterpart", "masks/e.png", None)]
    assert sorted(found[2:]) == [
        ("mask_size", "masks/b.png", None),
        ("stray_mask_value", "masks/a.png", None),
        ("stray_mask_value", "masks/b.png", None),
        ("unreadable_image", "images/c.jpg", None),
        ("unreadable_mask", "masks/c.png", None),
    ]
    assert check.findings.shown["missing_counterpart"][0].remedy == "Add the masks, or move these images elsewhere."


def test_a_check_names_the_lines_of_a_list_and_images_of_two_splits(tmp_path, check):
    root = write_voc(tmp_path)
    lists = root / "ImageSets/Segmentation"
    (lists / "train.txt").write_text("a\nnone\nb\na\nneither\nd\nnone\n")
    shutil.copy(root / "JPEGImages/b.jpg", root / "JPEGImages/e.jpg")
    (root / "SegmentationClass/e.png").write_bytes((root / "SegmentationClass/b.png").read_bytes())
    found = check(opened(root, "voc"))
    assert found == [
        ("listed_twice", "ImageSets/Segmentation/train.txt", 4),
        ("listed_twice", "ImageSets/Segmentation/train.txt", 7),
        ("missing_counterpart", "ImageSets/Segmentation/train.txt", 2),
        ("missing_counterpart", "ImageSets/Segmentation/train.txt", 5),
        ("missing_counterpart", "ImageSets/Segmentation/train.txt", 2),
        ("missing_counterpart", "ImageSets/Segmentation/train.txt", 5),
        ("listed_twice", "JPEGImages/d.jpg", None),
        ("duplicate_across_splits", "JPEGImages/d.jpg", None),
        ("duplicate_across_splits", "JPEGImages/e.jpg", None),
    ]


def test_masks_beside_images_in_the_current_folder_are_found(tmp_path, monkeypatch):
    for name in ("a1", "b1"):
        Image.fromarray(np.full((8, 8, 3), ord(name[0]), np.uint8)).save(tmp_path / f"{name}.jpg")
        Image.fromarray(np.eye(8, dtype=np.uint8)).save(tmp_path / f"{name}_mask.png")
    monkeypatch.chdir(tmp_path)
    splits = SegmentationFolder(root=".", classes=["sky", "road"], image_size=[8, 8], val_fraction=0.5).open()
    assert len(splits.train) == len(splits.val) == 1
