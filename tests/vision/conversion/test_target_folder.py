"""The folder that a conversion writes: names, links, conversions that were broken off, and full disks."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from annotated import Picture, Thing, random_pictures, read_coco, values, write_coco
from boxed_files import draw
from conversions import convert
from PIL import Image

from mxtrain.cli import main
from mxtrain.errors import ConfigError, DataError
from mxtrain.vision.conversion import form
from mxtrain.vision.conversion.names import NamePool
from mxtrain.vision.conversion.unfinished import UnfinishedFolder
from mxtrain.vision.conversion.yolo_form import YoloForm
from mxtrain.vision.images import record_writer
from mxtrain.vision.images.record_file import RecordFile
from mxtrain.vision.images.record_writer import RecordWriter, pack_record

NAMES = ["cat", "dog"]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_coco(tmp_path / "source", random_pictures(3), NAMES)


def tree(root: Path) -> dict:
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


def test_image_files_are_copied_byte_for_byte_or_linked(tmp_path, source) -> None:
    convert(source, tmp_path / "copied", to="yolo")
    convert(source, tmp_path / "linked", to="yolo", images="link")
    assert tree(tmp_path / "copied") == tree(tmp_path / "linked")
    for split in ("train", "val"):
        for path in (source / f"{split}2017").iterdir():
            assert (tmp_path / "copied" / "images" / split / path.name).read_bytes() == path.read_bytes()
            assert os.readlink(tmp_path / "linked" / "images" / split / path.name) == str(path)
    assert not any(path.is_symlink() for path in (tmp_path / "copied").rglob("*"))


def test_names_are_unique_before_their_extension_and_in_any_case() -> None:
    pool = NamePool()
    paths = ["x/a.jpg", "y/A.JPG", "a.png", "b c.jpg", ".jpg", "n\nm.png", "1.2.840", "a_2.jpg", "..jpg"]
    names = [pool.name(path) for path in paths]
    assert names == [
        "a.jpg",
        "A_2.JPG",
        "a_3.png",
        "b_c.jpg",
        "jpg.dcm",
        "n_m.png",
        "1.2.840.dcm",
        "a_2_2.jpg",
        "jpg_2.dcm",
    ]
    assert pool.name("train_000001", ".png") == "train_000001.png"


def test_long_names_leave_room_for_numbers_and_prefixes() -> None:
    pool = NamePool()
    assert [pool.name("x" * 240 + ".jpg") for _ in range(2)] == ["x" * 150 + ".jpg", "x" * 150 + "_2.jpg"]


def test_images_of_the_same_name_in_several_folders_get_names_of_their_own(tmp_path) -> None:
    for number, name in enumerate(("one/a.jpg", "two/a.jpg")):
        draw(tmp_path / "source" / name, (20 + number, 10), seed=number)
    rows = "image,class,xmin,ymin,xmax,ymax\none/a.jpg,cat,1,1,5,5\ntwo/a.jpg,dog,2,2,6,6\n"
    (tmp_path / "source" / "train.csv").write_text(rows)
    convert(tmp_path / "source", tmp_path / "coco", to="coco")
    found, _ = read_coco(tmp_path / "coco")
    assert [(picture.name, picture.size) for picture in found["train"]] == [("a.jpg", (20, 10)), ("a_2.jpg", (21, 10))]
    assert values(found)["train/a_2"] == [[1, 2, 2, 6, 6]]


def test_sizes_are_those_of_upright_images(tmp_path) -> None:
    pictures = {"train": [Picture("a.jpg", (20, 40), [Thing(0, (1.0, 2.0, 20.0, 40.0))])]}
    root = write_coco(tmp_path / "source", pictures, NAMES)
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(np.zeros((20, 40, 3), np.uint8)).save(root / "train2017" / "a.jpg", exif=exif)
    convert(root, tmp_path / "yolo", to="yolo")
    row = [float(cell) for cell in (tmp_path / "yolo/labels/train/a.txt").read_text().split()]
    np.testing.assert_allclose(row, [0, 10.5 / 20, 21 / 40, 19 / 20, 38 / 40], atol=1e-9)


def test_an_existing_target_is_refused(tmp_path, source) -> None:
    target = tmp_path / "target"
    target.mkdir()
    convert(source, target, to="voc")
    before = tree(target)
    with pytest.raises(ConfigError, match="exists already. Name another folder"):
        convert(source, target, to="voc")
    assert tree(target) == before


def test_a_target_in_the_source_is_refused(tmp_path, source) -> None:
    with pytest.raises(ConfigError, match="would be read as a part of it"):
        convert(source, source / "yolo", to="yolo")


class Stop(BaseException):
    """Stands for the end of the process."""


@pytest.mark.parametrize("to", ["coco", "voc", "yolo", "records"])
@pytest.mark.parametrize("after", [0, 3, 7])
def test_a_conversion_goes_on_and_its_result_is_the_same(tmp_path, source, monkeypatch, to, after) -> None:
    convert(source, tmp_path / "whole", to=to)
    counts = {"left": after}

    def stopping(function):
        def stopped(*arguments):
            if counts["left"] == 0:
                raise Stop
            counts["left"] -= 1
            return function(*arguments)

        return stopped

    with monkeypatch.context() as context:
        context.setattr(form, "_copy", stopping(form._copy))
        context.setattr(record_writer.RecordWriter, "write", stopping(record_writer.RecordWriter.write))
        with pytest.raises(Stop):
            convert(source, tmp_path / "target", to=to)
    assert not (tmp_path / "target").exists()
    unfinished = tmp_path / "target.unfinished"
    written = {path: path.stat().st_mtime_ns for path in unfinished.rglob("*.jpg")}
    convert(source, tmp_path / "target", to=to)
    assert tree(tmp_path / "target") == tree(tmp_path / "whole") and not unfinished.exists()
    for path, changed in written.items():
        assert (tmp_path / "target" / path.relative_to(unfinished)).stat().st_mtime_ns == changed


def test_an_image_of_another_size_is_copied_again(tmp_path, source, monkeypatch) -> None:
    _stop_before_annotations(source, tmp_path / "target", monkeypatch)
    image = next((tmp_path / "target.unfinished").rglob("train_002.jpg"))
    os.truncate(image, 100)
    convert(source, tmp_path / "target", to="yolo")
    copied = (tmp_path / "target/images/train/train_002.jpg").read_bytes()
    assert copied == (source / "train2017/train_002.jpg").read_bytes()


def _stop_before_annotations(source: Path, target: Path, monkeypatch) -> None:
    def stop(*_):
        raise Stop

    with monkeypatch.context() as context:
        context.setattr(YoloForm, "write_annotations", stop)
        with pytest.raises(Stop):
            convert(source, target, to="yolo")


def test_images_that_were_changed_after_an_interruption_are_refused(tmp_path, source, monkeypatch) -> None:
    _stop_before_annotations(source, tmp_path / "target", monkeypatch)
    image = source / "train2017" / "train_002.jpg"
    image.write_bytes(image.read_bytes()[:-1] + b"!")  # of the same length
    with pytest.raises(ConfigError, match="the source was changed since"):
        convert(source, tmp_path / "target", to="yolo")


def test_records_that_were_changed_after_an_interruption_are_refused(tmp_path, source, monkeypatch) -> None:
    convert(source, tmp_path / "records", to="records")
    _stop_before_annotations(tmp_path / "records", tmp_path / "target", monkeypatch)
    records = tmp_path / "records" / "train.rec"
    content = records.read_bytes()
    end = content.rindex(b"\xff\xd9")
    records.write_bytes(content[: end - 1] + bytes([content[end - 1] ^ 1]) + content[end:])
    with pytest.raises(ConfigError, match="the source was changed since"):
        convert(tmp_path / "records", tmp_path / "target", to="yolo")


def test_classes_that_were_renamed_after_an_interruption_are_refused(tmp_path, source, monkeypatch) -> None:
    _stop_before_annotations(source, tmp_path / "target", monkeypatch)
    for path in (source / "annotations").iterdir():
        path.write_text(path.read_text().replace('"dog"', '"fox"'))
    with pytest.raises(ConfigError, match="the source was changed since"):
        convert(source, tmp_path / "target", to="yolo")


def test_the_lock_is_held_until_the_folder_has_its_name(tmp_path, monkeypatch) -> None:
    renamed = []

    def rename(first, second, **_):
        with pytest.raises(ConfigError, match="another process writes to"):
            UnfinishedFolder(tmp_path / "target", {}).__enter__()
        renamed.append(first)
        replace(first, second)

    replace = os.replace
    with UnfinishedFolder(tmp_path / "target", {}) as unfinished:
        monkeypatch.setattr(os, "rename", rename)
        unfinished.finish()
    assert renamed == [unfinished.path] and not list((tmp_path / "target").iterdir())


def test_bytes_behind_the_last_record_are_cut_off(tmp_path) -> None:
    path = tmp_path / "a.rec"
    with RecordWriter(path) as writer:
        writer.write(pack_record(0, [1], b"image"))
    whole = path.read_bytes()
    for rest in (bytes(64), whole[:11], b"x"):
        path.write_bytes(whole + rest)
        with RecordWriter(path) as writer:
            assert len(writer) == 1
        assert path.read_bytes() == whole


def test_another_conversion_does_not_go_on_in_the_same_folder(tmp_path, source, monkeypatch) -> None:
    with monkeypatch.context() as context:
        context.setattr(form, "_copy", lambda *_: (_ for _ in ()).throw(Stop()))
        with pytest.raises(Stop):
            convert(source, tmp_path / "target", to="yolo")
    with pytest.raises(ConfigError, match="belongs to another conversion, or the source was changed"):
        convert(source, tmp_path / "target", to="voc")
    other = write_coco(tmp_path / "other", random_pictures(4), NAMES)
    with pytest.raises(ConfigError, match="belongs to another conversion"):
        convert(other, tmp_path / "target", to="yolo")
    foreign = tmp_path / "mine.unfinished"
    foreign.mkdir()
    (foreign / "thesis.txt").write_text("x")
    with pytest.raises(ConfigError, match="is no folder of a conversion"):
        convert(source, tmp_path / "mine", to="yolo")


@pytest.mark.parametrize("to", ["yolo", "records"])
def test_a_full_disk_ends_with_a_message_and_the_command_goes_on(tmp_path, source, monkeypatch, capsys, to) -> None:
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    words = ["data", "convert", str(source), str(tmp_path / "target"), f"to={to}"]
    with monkeypatch.context() as context:
        context.setattr(form, "_copy", full)
        context.setattr(record_writer.RecordWriter, "write", full)
        assert main(words) == 2
    message = capsys.readouterr().err
    assert "No space left on device" in message and "the same command goes on from there" in message
    assert main(words) == 0
    assert "read again and compared, all are the same" in capsys.readouterr().out


def test_a_damaged_result_is_not_put_in_place(tmp_path, source, monkeypatch) -> None:
    row = YoloForm._row

    def shifted(self, each, size, closes):
        left, top, right, bottom = each.edges
        return row(self, each._replace(edges=(left, top, right, bottom - 0.01)), size, closes)

    monkeypatch.setattr(YoloForm, "_row", shifted)
    with pytest.raises(DataError, match="differ from the source: coordinates of an object .* differ by 0.01 pixels"):
        convert(source, tmp_path / "target", to="yolo")
    assert not (tmp_path / "target").exists()


def test_a_damaged_image_is_not_put_in_place(tmp_path, source, monkeypatch) -> None:
    write = YoloForm.write_annotations

    def damaging(self, folder, progress):
        write(self, folder, progress)
        path = folder / "images/train/train_001.jpg"
        path.write_bytes(path.read_bytes() + b"x")

    monkeypatch.setattr(YoloForm, "write_annotations", damaging)
    with pytest.raises(DataError, match="train_001.jpg' has other content than .*train_001.jpg'"):
        convert(source, tmp_path / "target", to="yolo")
    assert not (tmp_path / "target").exists()


def test_two_processes_do_not_write_to_one_folder(tmp_path, source, monkeypatch) -> None:
    seen = []

    def second(*_):
        with pytest.raises(ConfigError, match="another process writes to"):
            convert(source, tmp_path / "target", to="yolo")
        seen.append(True)
        raise Stop

    monkeypatch.setattr(form, "_copy", second)
    with pytest.raises(Stop):
        convert(source, tmp_path / "target", to="yolo")
    assert seen == [True]


@pytest.mark.slow
@pytest.mark.parametrize("to", ["voc", "records"])
def test_killed_conversions_go_on(tmp_path, to) -> None:
    pictures = random_pictures(9, counts=(200, 20))
    source = write_coco(tmp_path / "source", pictures, NAMES)
    words = [sys.executable, "-m", "mxtrain", "data", "convert", str(source), str(tmp_path / "target"), f"to={to}"]
    unfinished = tmp_path / "target.unfinished"
    for count in (20, 120):
        process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        while process.poll() is None and _progress(unfinished) < count:
            time.sleep(0.001)
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stderr.close()
    assert subprocess.run(words, stdout=subprocess.DEVNULL, check=False).returncode in (0, 2)
    convert(source, tmp_path / "whole", to=to)
    assert tree(tmp_path / "target") == tree(tmp_path / "whole")


def _progress(unfinished: Path) -> int:
    records = unfinished / "train.rec"
    if records.exists():
        return records.stat().st_size // 1500
    return len(list(unfinished.glob("JPEGImages/*.jpg")))


def test_records_are_split_at_the_magic_number_and_cut_off_behind_the_last_one(tmp_path) -> None:
    magic = (0xCED7230A).to_bytes(4, "little")
    images = [magic, b"abcd" + magic + b"xyz", b"a" + magic, magic * 3 + b"q", b"", b"\xff\xd8" * 40]
    path = tmp_path / "a.rec"
    for end in range(0, 60, 7):
        with RecordWriter(path) as writer:
            begin = len(writer)
            for number in range(begin, len(images)):
                writer.write(pack_record(number, [number], images[number]))
        records = RecordFile(path)
        assert [records.read(number) for number in range(len(images))] == [(each, n) for n, each in enumerate(images)]
        os.truncate(path, os.path.getsize(path) - end)
        path.with_suffix(".idx").unlink()
