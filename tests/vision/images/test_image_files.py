"""Images that are decoded when read: folders, RecordIO files, and files to predict on."""

import ast
import io
import os
import shutil
import struct
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pytest
from image_files import open_files
from image_loader import image_loader
from PIL import Image

from mxtrain.errors import DataError, LoaderError
from mxtrain.vision.classification.digits import Digits
from mxtrain.vision.classification.image_folder import ImageFolder
from mxtrain.vision.classification.image_record import ImageRecord
from mxtrain.vision.detection.digit_scenes import BoxedDigitScenes, DigitScenes
from mxtrain.vision.images import decoding
from mxtrain.vision.images.decoding import DecodedSource
from mxtrain.vision.images.files import ImageFiles, list_images
from mxtrain.vision.images.make_record import encode_file, main, make_record
from mxtrain.vision.images.record_file import RecordFile
from mxtrain.vision.images.settings import Decoding, FileAugment


def read_all(source, epoch=0, train=False):
    return source.fetch(np.arange(len(source)), seed=0, epoch=epoch, train=train)


def make_loader(splits, source):
    return image_loader(source, batch_size=4, input_shape=splits.shape, mean=splits.mean, std=splits.std, num_classes=2)


def test_folder_is_split_and_labelled_by_its_folders(write_images):
    splits = ImageFolder(root=str(write_images()), image_size=[24, 32], val_fraction=0.25, test_fraction=0.25).open()
    assert (len(splits.train), len(splits.val), len(splits.test)) == (8, 4, 4)
    assert splits.class_names == ["blue", "red"] and splits.shape == (3, 24, 32)
    for source in (splits.train, splits.val, splits.test):
        image, label = read_all(source)
        is_red = image[:, 0].mean((1, 2)) > image[:, 2].mean((1, 2))
        assert image.dtype == np.uint8 and np.array_equal(is_red, label == 1) and 0 < label.mean() < 1


def test_folder_with_its_own_splits(write_images, tmp_path):
    write_images("data/train", count=6)
    write_images("data/val", count=2)
    splits = ImageFolder(root=str(tmp_path / "data"), image_size=[16, 16]).open()
    assert (len(splits.train), len(splits.val), splits.test) == (12, 4, None)
    write_images("data/test", count=3)
    assert len(ImageFolder(root=str(tmp_path / "data")).open().test) == 6


@pytest.mark.parametrize(
    "train, val, test",
    [
        ("training_set", None, "test_set"),
        ("Train", "Val", "Test"),
        ("Training", None, "Testing"),
        ("seg_train/seg_train", None, "seg_test/seg_test"),
        ("train", "valid", "test"),
        ("train", "validation", None),
        ("train", "dev", None),
    ],
)
def test_usual_names_of_splits(write_images, tmp_path, train, val, test):
    for name, count in ((train, 6), (val, 2), (test, 3)):
        if name is not None:
            write_images(f"data/{name}", count=count)
    splits = ImageFolder(root=str(tmp_path / "data"), image_size=[16, 16], val_fraction=0.25).open()
    assert splits.class_names == ["blue", "red"]
    assert len(splits.train) == (12 if val else 9 if test else 12) and len(splits.val) == (4 if val else 3)
    assert test is None or len(splits.test) == 6


def test_class_folder_named_train_is_a_class(write_images, tmp_path):
    write_images("data", classes=["bus", "train"], count=4)
    assert ImageFolder(root=str(tmp_path / "data")).open().class_names == ["bus", "train"]


def test_folders_of_class_folders_are_refused(write_images, tmp_path):
    for part in ("part1", "part2"):
        write_images(f"data/{part}", classes=["cat", "dog"])
    with pytest.raises(DataError, match=r"all the same folders \(cat/, dog/\).*Type dataset.root=.*data/part1"):
        ImageFolder(root=str(tmp_path / "data")).open()


def test_folders_of_the_system_are_no_classes_and_hold_no_images(write_images, tmp_path):
    root = write_images(count=4)
    for folder in ("__MACOSX/red", "$RECYCLE.BIN", "System Volume Information", "red/@eaDir/0.jpg"):
        (root / folder).mkdir(parents=True)
    (root / "__MACOSX/red/._0.jpg").write_bytes(b"\0\5\26\7")
    shutil.copy(root / "red/0.jpg", root / "red/@eaDir/0.jpg/SYNOPHOTO_THUMB_M.jpg")
    splits = ImageFolder(root=str(root), val_fraction=0.25).open()
    assert splits.class_names == ["blue", "red"] and len(splits.train) + len(splits.val) == 8


def test_images_in_formats_that_are_not_read_are_reported(write_images, check, caplog):
    root = write_images(count=4)
    for name in ("a.jfif", "b.JPE"):
        shutil.copy(root / "red/0.jpg", root / "red" / name)
    Image.new("1", (40, 60)).save(root / "red/c.pbm")
    for name in ("d.HEIC", "e.heic", "f.avif", "z.mp4", "g.webm"):
        (root / "red" / name).write_bytes(b"of a phone")
    dataset = ImageFolder(root=str(root))
    splits = dataset.open()
    assert len(splits.train) + len(splits.val) == 8 + 3
    assert "holds 5 files ending in .avif, .heic, .mp4, .webm, such as" in caplog.text
    found = check(dataset)
    assert ("unreadable_image", "images/red/d.HEIC", None) in found


def test_a_split_without_class_folders_is_refused(write_images, tmp_path):
    root = write_images("images/train")
    shutil.copytree(root / "blue", tmp_path / "images/test")
    with pytest.raises(DataError, match="test' holds images, but no class folders, so the classes"):
        ImageFolder(root=str(tmp_path / "images")).open()


def test_folder_refusals(write_images, tmp_path):
    with pytest.raises(DataError, match="there is no folder '.*none'"):
        ImageFolder(root=str(tmp_path / "none")).open()
    root = write_images()
    with pytest.raises(DataError, match=f"Did you mean '{root.name}'"):
        ImageFolder(root=f"{root}s").open()
    write_images("unpacked/photos/train", classes=["cat", "dog"])
    write_images("unpacked/photos/test", classes=["cat", "dog"])
    with pytest.raises(DataError, match=r"only one, 'photos'.*type dataset.root=.*unpacked/photos if"):
        ImageFolder(root=str(tmp_path / "unpacked")).open()
    (root / "green").mkdir()
    with pytest.raises(DataError, match="green' holds no images"):
        ImageFolder(root=str(root)).open()
    with pytest.raises(DataError, match="at least two classes, but holds only one, 'cat'"):
        ImageFolder(root=str(write_images("single", classes=["cat"]))).open()
    with pytest.raises(DataError, match="holds none"):
        ImageFolder(root=str(root / "green")).open()
    write_images("splits/train")
    write_images("splits/val", classes=["blue", "red", "violet"])
    with pytest.raises(DataError, match="the class 'violet', which the training images do not have"):
        ImageFolder(root=str(tmp_path / "splits")).open()
    with pytest.raises(DataError, match="no validation samples"):
        ImageFolder(root=str(write_images("few", count=1)), val_fraction=0.1).open()


@pytest.mark.parametrize("damage", [b"no image at all", None])
def test_a_corrupt_image_is_named(write_images, damage, monkeypatch):
    monkeypatch.setattr("PIL.ImageFile.LOAD_TRUNCATED_IMAGES", True)  # as importing GluonCV leaves it
    root = write_images()
    path = root / "red" / "3.jpg"
    path.write_bytes(path.read_bytes()[:-400] if damage is None else damage)
    splits = ImageFolder(root=str(root), image_size=[16, 16]).open()
    loader, val = make_loader(splits, splits.train), make_loader(splits, splits.val)
    with pytest.raises(LoaderError, match="red/3.jpg' cannot be read as an image"):
        for batches in (loader.epoch(), val.epoch()):
            for _ in batches:
                pass


def test_a_random_crop_is_a_function_of_epoch_and_sample(write_images):
    augment = FileAugment(crop_scale=[0.1, 0.6])
    source = ImageFolder(root=str(write_images()), image_size=[16, 16], augment=augment).open().train
    whole, _ = read_all(source, train=True)
    part, _ = source.fetch(np.array([5, 1]), seed=0, epoch=0, train=True)
    assert np.array_equal(part, whole[[5, 1]])
    assert not np.array_equal(read_all(source, epoch=1, train=True)[0], whole)
    assert np.array_equal(read_all(source, train=False)[0], read_all(source, epoch=1, train=False)[0])


def test_decoding_takes_the_centre(tmp_path):
    pixels = np.zeros((40, 80, 3), np.uint8)
    pixels[:, 20:60] = (255, 0, 0)
    Image.fromarray(pixels).save(tmp_path / "wide.png")
    source = DecodedSource(ImageFiles([tmp_path / "wide.png"]), Decoding((3, 20, 20), 0.9))
    image, label = read_all(source)
    assert (image[0, 0] == 255).all() and (image[0, 1:] == 0).all() and label.tolist() == [-1]


@pytest.mark.slow
def test_big_jpegs_are_reduced_while_decoding_with_the_same_result(tmp_path):
    y, x = np.mgrid[:600, :800]
    pixels = np.stack([x % 256, y % 256, (x + y) // 6], -1).astype(np.uint8) // 2 + 60
    Image.fromarray(pixels).resize((1600, 1200)).save(tmp_path / "a.jpg", quality=95)
    Image.open(tmp_path / "a.jpg").save(tmp_path / "a.png")
    image, _ = read_all(open_files([tmp_path / "a.jpg", tmp_path / "a.png"], Decoding((3, 64, 64), 0.875)))
    assert abs(image[0].astype(int) - image[1].astype(int)).mean() < 2


@pytest.mark.parametrize("ending", ["jpg", "tif"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_photographs_are_turned_upright(tmp_path, orientation, ending):
    pixels = np.zeros((60, 90, 3), np.uint8)
    pixels[:30, :45] = 250  # bright in the upper left
    undo = {1: None, 2: 0, 3: 3, 4: 1, 5: 5, 6: 2, 7: 6, 8: 4}[orientation]  # the transposition that made it so
    picture = Image.fromarray(pixels)
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = tmp_path / f"turned.{ending}"
    (picture if undo is None else picture.transpose(undo)).save(path, exif=exif)
    image, _ = read_all(open_files([path], Decoding((1, 20, 30))))
    assert image[0, 0, :8, :12].min() > 200 and image[0, 0, 12:].max() < 50 and image[0, 0, :, 18:].max() < 50


@pytest.mark.parametrize("mode", ["L", "P", "RGBA", "CMYK", "1", "LA"])
@pytest.mark.parametrize("channels", [1, 3])
def test_all_kinds_of_pixels_are_read(tmp_path, mode, channels):
    name = tmp_path / ("a.jpg" if mode == "CMYK" else "a.png")
    Image.new("RGB", (30, 20), (255, 255, 255)).convert(mode).save(name)
    image, _ = read_all(open_files([name], Decoding((channels, 8, 8))))
    assert image.shape == (1, channels, 8, 8) and image.min() > 250


def test_files_to_predict_on(write_images, tmp_path):
    root = write_images()
    (root / "notes.txt").write_text("no image")
    (root / ".hidden.jpg").write_text("no image")
    assert len(list_images(root)) == 16
    source = open_files([root / "red" / "0.jpg", root / "blue"], Decoding((3, 8, 8)))
    assert [path.split("/")[-2] for path in source.encoded.paths] == ["red"] + ["blue"] * 8
    assert read_all(source)[1].tolist() == [-1] * 9
    with pytest.raises(DataError, match="no image file or folder '.*gone.jpg'"):
        open_files([root / "gone.jpg"], Decoding((3, 8, 8)))
    with pytest.raises(DataError, match=r"no image file or folder '.*\*.jpg'. The shell expands patterns"):
        open_files([root / "*.jpg"], Decoding((3, 8, 8)))
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="holds no images"):
        list_images(tmp_path / "empty")


@pytest.mark.parametrize("dataset", [Digits(), DigitScenes(image_size=[64, 64]), BoxedDigitScenes(image_size=[64, 64])])
def test_broken_link_is_skipped_like_unreadable_files(write_images, dataset):
    root = write_images()
    link = root / "red" / "1.5.jpg"
    link.symlink_to("gone.jpg")
    decoding = Decoding((3, 8, 8), frame=(8, 8))
    given = dataset.signature_class((3, 8, 8), [0.5] * 3, [0.2] * 3, ["a", "b"], decoding=decoding)
    for name in (link, root):
        with pytest.raises(DataError, match="1.5.jpg' is a link to nothing. .*skip_unreadable=true"):
            dataset.open_inputs([str(name)], given, False, {})
    unreadable = {}
    source, places = dataset.open_inputs([str(root), str(link)], given, True, unreadable)
    read_all(source)
    assert len(places) == 18 and places[9] == places[17] == str(link)
    assert unreadable == {9: f"'{link}' is a link to nothing.", 17: f"'{link}' is a link to nothing."}


def test_records_equal_the_folder(write_images, tmp_path):
    root = write_images()
    written = make_record(str(root), str(tmp_path / "packed" / "two"), val_fraction=0.25, test_fraction=0.25)
    assert sorted(path.name for path in written) == sorted(path.name for path in (tmp_path / "packed").iterdir())
    options = dict(image_size=[16, 16], val_fraction=0.25, test_fraction=0.25)
    from_folder = ImageFolder(root=str(root), **options).open()
    from_records = ImageRecord(root=str(tmp_path / "packed"), prefix="two", **options).open()
    assert from_records.class_names == ["blue", "red"]
    for part in ("train", "val", "test"):
        for ours, theirs in zip(read_all(getattr(from_records, part)), read_all(getattr(from_folder, part))):
            assert np.array_equal(ours, theirs)


def test_making_records_never_overwrites_and_cleans_up(write_images, tmp_path, capsys):
    root, prefix = write_images(), str(tmp_path / "out" / "a")
    assert main([str(root), prefix, "--size", "20", "--quality", "80"]) == 0
    assert "dataset.prefix=a" in capsys.readouterr().out
    before = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    assert main([str(root), prefix]) == 2
    assert "exists already" in capsys.readouterr().err
    (root / "red" / "1.jpg").write_bytes(b"broken")
    assert main([str(root), str(tmp_path / "out" / "b")]) == 2
    assert "red/1.jpg' cannot be read" in capsys.readouterr().err
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == before
    content, _ = RecordFile(tmp_path / "out" / "a_train.rec").read(0)
    assert min(Image.open(io.BytesIO(content)).size) == 20


def test_records_of_mxnets_own_writer_open_here(tmp_path):
    from mxtrain.engine.backend import mx

    magic = (0xCED7230A).to_bytes(4, "little")
    contents = [b"x" * n + magic * (n % 3) + b"y" * n for n in (4, 8, 33, 40)]  # cut at the magic number
    record = mx.recordio.MXIndexedRecordIO(str(tmp_path / "a.idx"), str(tmp_path / "a.rec"), "w")
    for number, content in enumerate(contents):
        packed = mx.recordio.pack(mx.recordio.IRHeader(0, float(number), number, 0), content)
        if number % 2:  # the other way to write one label: as an array of one
            packed = struct.pack("<IfQQf", 1, 0.0, number, 0, number) + content
        record.write_idx(number, packed)
    record.close()
    for with_index in (True, False):
        if not with_index:
            (tmp_path / "a.idx").unlink()
        records = RecordFile(tmp_path / "a.rec")
        assert [records.read(index) for index in range(4)] == list(zip(contents, range(4)))
        assert records.read_labels().tolist() == [0, 1, 2, 3]


def test_our_records_open_in_mxnets_iterator(write_images, tmp_path):
    from mxtrain.engine.backend import mx

    make_record(str(write_images()), str(tmp_path / "a"))
    iterator = mx.io.ImageRecordIter(path_imgrec=str(tmp_path / "a_train.rec"), data_shape=(3, 16, 16), batch_size=14)
    assert sorted(next(iterator).label[0].asnumpy()) == [0] * 7 + [1] * 7


def test_records_without_class_names_or_validation(write_images, tmp_path):
    make_record(str(write_images()), str(tmp_path / "a"))
    for name in ("a_classes.txt", "a_val.rec", "a_val.idx"):
        (tmp_path / name).unlink()
    splits = ImageRecord(root=str(tmp_path), prefix="a", image_size=[8, 8]).open()
    assert splits.class_names == ["0", "1"] and (len(splits.train), len(splits.val)) == (12, 2)


def test_records_with_line_ends_of_windows(write_images, tmp_path):
    """MXNet's writer ends lines of an index so on Windows."""
    make_record(str(write_images()), str(tmp_path / "a"))
    for part in ("train", "val"):
        path = tmp_path / f"a_{part}.idx"
        path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    (tmp_path / "a_classes.txt").write_bytes(b"\xef\xbb\xbfblue \r\n\r\nred\r\n")
    splits = ImageRecord(root=str(tmp_path), prefix="a", image_size=[8, 8]).open()
    assert splits.class_names == ["blue", "red"] and (len(splits.train), len(splits.val)) == (14, 2)


def test_damaged_records_are_refused_by_name(write_images, tmp_path):
    with pytest.raises(DataError, match="(?s)no file '.*images_train.rec'.*make_record FOLDER"):
        ImageRecord(root=str(tmp_path)).open()
    make_record(str(write_images()), str(tmp_path / "images"))
    path = tmp_path / "images_train.rec"
    good = path.read_bytes()
    path.write_bytes(good[: len(good) // 2])
    with pytest.raises(DataError, match="images_train.rec' is truncated"):
        ImageRecord(root=str(tmp_path)).open()
    (tmp_path / "images_train.idx").unlink()
    with pytest.raises(DataError, match="images_train.rec' is truncated"):
        ImageRecord(root=str(tmp_path)).open()
    path.write_bytes(b"PK" + good)
    with pytest.raises(DataError, match="images_train.rec' does not begin at byte 0"):
        ImageRecord(root=str(tmp_path)).open()


@pytest.mark.parametrize("change", [16, -16, 4])
@pytest.mark.parametrize("has_index", [True, False])
def test_record_length_different_from_the_index_is_refused(write_images, tmp_path, change, has_index):
    make_record(str(write_images()), str(tmp_path / "images"))
    path = tmp_path / "images_train.rec"
    content = bytearray(path.read_bytes())
    second = RecordFile(path).offset_N[1]
    struct.pack_into("<I", content, second + 4, struct.unpack_from("<I", content, second + 4)[0] + change)
    path.write_bytes(content)
    if not has_index:
        path.with_suffix(".idx").unlink()
        with pytest.raises(DataError, match="Record 2 of .* does not begin at byte"):
            RecordFile(path)
        return
    records = RecordFile(path)
    for index in (0, 2, len(records) - 1):
        records.read(index)
    with pytest.raises(LoaderError, match="Record 1 of .* has a length that cannot be right"):
        records.read(1)


def test_an_index_of_some_records_is_read(write_images, tmp_path):
    make_record(str(write_images()), str(tmp_path / "images"))
    index = tmp_path / "images_train.idx"
    lines = index.read_text().splitlines(keepends=True)
    index.write_text("".join(lines[::-2]))
    records = RecordFile(tmp_path / "images_train.rec")
    assert [records.read(number) for number in range(len(records))]


def test_a_corrupt_record_is_named_and_does_not_end_the_process(write_images, tmp_path):
    make_record(str(write_images()), str(tmp_path / "images"))
    path = tmp_path / "images_train.rec"
    content = bytearray(path.read_bytes())
    offset = RecordFile(path).offset_N[5] + 32
    content[offset : offset + 600] = bytes(600)
    path.write_bytes(content)
    splits = ImageRecord(root=str(tmp_path), image_size=[16, 16]).open()
    loader = make_loader(splits, splits.train)
    with pytest.raises(LoaderError, match="Record 5 of '.*images_train.rec' .*cannot be read as an image"):
        list(loader.epoch())


def test_opening_an_image_starts_no_program(tmp_path, monkeypatch):
    """Pillow would hand an EPS to Ghostscript, whatever the file is called."""
    from PIL import EpsImagePlugin

    path, gs = tmp_path / "x.jpg", tmp_path / "bin" / "gs"
    path.write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\nshowpage\n")
    gs.parent.mkdir()
    gs.write_text(f"#!/bin/sh\ntouch {tmp_path}/executed\n")
    gs.chmod(0o755)
    monkeypatch.setenv("PATH", f"{gs.parent}:{os.environ['PATH']}")
    monkeypatch.setattr(EpsImagePlugin, "gs_binary", None)
    source = open_files([path], Decoding((3, 8, 8)))
    with pytest.raises(LoaderError, match="x.jpg"):
        source.fetch(np.array([0]), seed=0, epoch=0, train=False)
    for size in (0, 4):
        with pytest.raises(DataError, match="x.jpg"):
            encode_file(str(path), size, 95)
    assert not (tmp_path / "executed").exists()


@pytest.mark.slow
def test_every_image_is_opened_as_one_of_the_known_formats():
    calls = [
        ast.unparse(node)
        for path in Path(decoding.__file__).parents[2].rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Call)
    ]
    opened = [text for text in calls if text.startswith("Image.open(")]
    assert opened == ["Image.open(io.BytesIO(content), formats=formats)"]
    chosen = [text for text in calls if text.startswith("open_image(") and "," in text]
    assert sorted(chosen) == [
        "open_image(base64.b64decode(text, validate=True))",
        "open_image(content, FORMATS, max_pixels)",
        "open_image(frame, ['JPEG'])",
        "open_image(frame, ['JPEG2000'])",
    ]
