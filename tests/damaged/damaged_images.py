"""Damaged data: images in folders and records, IDX and CIFAR files, files to predict on."""

from __future__ import annotations

import gzip
import os
import struct
import zlib
from pathlib import Path
from typing import Any, Callable, List

import numpy as np
import pytest
from damage import Case, damage, damage_file, kind, linked_to, piped, read_splits
from image_files import open_files
from PIL import Image

from mxtrain.vision.classification.cifar import Cifar100
from mxtrain.vision.classification.image_folder import ImageFolder
from mxtrain.vision.classification.image_record import ImageRecord
from mxtrain.vision.classification.mnist import Mnist
from mxtrain.vision.images.make_record import make_record
from mxtrain.vision.images.record_file import RecordFile
from mxtrain.vision.images.settings import Decoding

FOLDER, RECORDS, FILES = "image folder", "RecordIO", "files to predict on"
IDX, CIFAR, DICOM = "IDX files", "CIFAR files", "DICOM files"

NAMELESS = "'caf\\xe9', which is no UTF-8. Rename it"
CASES: List[Case] = [
    Case(FOLDER, "an image is cut off", "red/3.png' cannot be read as an image", 1),
    Case(FOLDER, "an image is a text", "red/3.png' cannot be read as an image", 1),
    Case(FOLDER, "an image is empty", "red/3.png' cannot be read as an image", 1),
    Case(FOLDER, "an image is PostScript", "red/3.png' cannot be read as an image", 1),
    Case(FOLDER, "an image says it has 100,000 x 100,000 pixels", "100000 x 100000 pixels, and at most 178,956,970", 1),
    Case(FOLDER, "an image of floats goes beyond 1", "floats from 0 to 255; they must lie between 0 and 1", 1),
    Case(FOLDER, "an image is a named pipe", "red/3.png' is a named pipe, and only regular files are read"),
    Case(FOLDER, "an image is a link to /dev/zero", "red/3.png' is a device, and only regular files are read"),
    Case(FOLDER, "an image is a link to nothing", "red/3.png' is a link to nothing"),
    Case(FOLDER, "an image may not be read", "red/3.png' cannot be read: Permission denied", 1),
    Case(FOLDER, "a class folder may not be read", "images/red' cannot be read: Permission denied"),
    Case(FOLDER, "a class folder is empty", "green' holds no images"),
    Case(FOLDER, "a class folder is named in Latin-1", NAMELESS),
    Case(FOLDER, "a class folder is a link to another", "are the same file, by a link: an image has one class"),
    Case(FOLDER, "an image is a link into another class", "are the same file, by a link: an image has one class"),
    Case(FOLDER, "a validation image is a link to one that is trained on", "is either trained on or measured"),
    Case(FOLDER, "the validation folder is a link to nothing", "val' is a link to nothing"),
    Case(FOLDER, "the path has 5,000 bytes", "cannot be read: File name too long"),
    Case(FOLDER, "the folder is a file", "there is no folder"),
    Case(RECORDS, "the .rec file is cut off", "images_train.rec' is truncated"),
    Case(RECORDS, "the .rec file is a named pipe", "images_train.rec' is a named pipe"),
    Case(RECORDS, "the validation records are a link to nothing", "images_val.rec' is a link to nothing"),
    Case(RECORDS, "the .idx file is no index", "images_train.idx' is not an index of records"),
    Case(RECORDS, "the .idx file points before the beginning", "images_train.idx' points to byte -8"),
    Case(RECORDS, "the .idx file points behind the end", "its index"),
    Case(RECORDS, "the .idx file points to 2^70", "images_train.idx' is not an index of records"),
    Case(RECORDS, "the .idx file names a record twice", "images_train.idx' points to a byte twice"),
    Case(RECORDS, "a label is NaN", "has the label nan; allowed is 0 to 1048575"),
    Case(RECORDS, "a label is infinite", "has the label inf; allowed is 0 to 1048575"),
    Case(RECORDS, "a label is 1e8", "has the label 1e+08; allowed is 0 to 1048575"),
    Case(RECORDS, "a label is 3e9", "has the label 3e+09; allowed is 0 to 1048575"),
    Case(RECORDS, "a label is 0.5", "has the label 0.5; allowed is 0 to 1048575"),
    Case(RECORDS, "a label has no class name", "has the label 7; allowed is 0 to 1", 1),
    Case(RECORDS, "a record says it has 500 MB", "images_train.rec' is truncated: record 2 ends at"),
    Case(RECORDS, "a record is too short for a label", "has 8 bytes, too few for a label"),
    Case(RECORDS, "the class names are in Latin-1", "images_classes.txt, line 2 is no UTF-8: it holds the byte 0xe9"),
    Case(RECORDS, "a class name stands twice", "names the class 'blue' twice"),
    Case(IDX, "the images are cut off", "its header says 40 images, which take 31376 bytes, but it holds 15687"),
    Case(IDX, "the header says 2^31 images of 2^31 x 2^31", "its header says 2147483648 images"),
    Case(IDX, "the header says 2^32 images of 2^16 x 2^16", "its header says 4294967295 images"),
    Case(IDX, "the header says 0 x 0 pixels", "its header says 40 images"),
    Case(IDX, "a packed file says 2^31 images", "its header says 2147483648 images"),
    Case(IDX, "a packed file is cut off", "is truncated or not gzipped"),
    Case(IDX, "the images are a web page", "it must begin with the bytes 00000803, not 3c68746d"),
    Case(IDX, "a label is 200", "holds the label 200; allowed are 0 to 9"),
    Case(CIFAR, "a file is cut off", "bytes are not a whole number of images of 3074 bytes each"),
    Case(CIFAR, "a file is a named pipe", "train.bin' is a named pipe"),
    Case(CIFAR, "the class names are in Latin-1", "fine_label_names.txt, line 1 is no UTF-8"),
    Case(DICOM, "a file is cut off", "cut off: its pixels take 1,536 bytes", 1),
    Case(DICOM, "a file ends in its header", "ends before its data set", 1),
    Case(DICOM, "a file holds no pixels", "it holds no pixels (PixelData), or is damaged", 1),
    Case(DICOM, "a file has one of three frames", "it is cut off: 3 frames of 24 rows of 32 pixels take 4,608 bytes"),
    Case(DICOM, "a file says it has 65,535 x 65,535 pixels", "65535 x 65535 pixels, and at most 178,956,970", 1),
    Case(DICOM, "a file is deflated", "Deflated Explicit VR Little Endian (1.2.840.10008.1.2.1.99), which is not", 1),
    Case(DICOM, "a file is a video", "MPEG2 (1.2.840.10008.1.2.4.100), which is not read: convert it", 1),
    Case(DICOM, "a file is no DICOM", "red/3.dcm' cannot be read as an image", 1),
    Case(FILES, "an image is a named pipe", "3.png' is a named pipe", 1),
    Case(FILES, "the path has 5,000 bytes", "cannot be read: File name too long"),
    Case(FILES, "an image says it has 100,000 x 100,000 pixels", "100000 x 100000 pixels, and at most 178,956,970", 1),
]


def write_images(folder: Path) -> Path:
    """Eight images of each of two classes."""
    rng = np.random.RandomState(0)
    for name in ("blue", "red"):
        (folder / name).mkdir(parents=True)
        for number in range(8):
            Image.fromarray(rng.randint(0, 256, (12, 16, 3), np.uint8)).save(folder / name / f"{number}.png")
    return folder


@kind(FOLDER)
def _image_folder(folder: Path) -> Callable[[], None]:
    write_images(folder / "images")

    def read() -> None:
        renamed = folder / "renamed"
        root = renamed.read_text() if renamed.exists() else folder / "images"
        read_splits(ImageFolder(root=str(root), image_size=[8, 8]))()

    return read


@kind(DICOM)
def _dicom(folder: Path) -> Callable[[], None]:
    pytest.importorskip("pydicom", reason="pydicom is not installed: pip install 'mxtrain[dicom]'")
    from dicom_files import write_folder

    write_folder(folder / "images", names=("blue", "red"))
    return read_splits(ImageFolder(root=str(folder / "images"), image_size=[8, 8]))


@kind(RECORDS)
def _records(folder: Path) -> Callable[[], None]:
    make_record(str(write_images(folder / "images")), str(folder / "images"))
    return read_splits(ImageRecord(root=str(folder), image_size=[8, 8]))


@kind(IDX)
def _idx(folder: Path) -> Callable[[], None]:
    for part, count in (("train", 40), ("t10k", 20)):
        (folder / f"{part}-images-idx3-ubyte").write_bytes(idx_header(count, 28, 28) + bytes(784 * count))
        labels = (np.arange(count) % 10).astype(np.uint8).tobytes()
        (folder / f"{part}-labels-idx1-ubyte").write_bytes(struct.pack(">2I", 0x801, count) + labels)
    return read_splits(Mnist(root=str(folder), verify_checksum=False))


def idx_header(*shape: int) -> bytes:
    return struct.pack(">4I", 0x803, *shape)


@kind(CIFAR)
def _cifar(folder: Path) -> Callable[[], None]:
    for name in ("train.bin", "test.bin"):
        (folder / name).write_bytes(b"".join(bytes([0, number % 10]) + bytes(3072) for number in range(20)))
    return read_splits(Cifar100(root=str(folder), verify_checksum=False))


@kind(FILES)
def _files(folder: Path) -> Callable[[], None]:
    write_images(folder / "images")

    def read() -> None:
        renamed = folder / "renamed"
        path = renamed.read_text() if renamed.exists() else str(folder / "images" / "red" / "3.png")
        source = open_files([path], Decoding((3, 8, 8)))
        source.fetch(np.arange(1), seed=0, epoch=0, train=False)

    return read


IMAGE, NEW = (FOLDER, "images/red/3.png"), (FILES, "images/red/3.png")
REC, IDX_OF, CLASSES = (RECORDS, "images_train.rec"), (RECORDS, "images_train.idx"), (RECORDS, "images_classes.txt")
IMAGES = (IDX, "train-images-idx3-ubyte")


@damage_file(IMAGE, called="an image is cut off")
@damage_file(REC, called="the .rec file is cut off")
@damage_file(IMAGES, called="the images are cut off")
@damage_file((CIFAR, "train.bin"), called="a file is cut off")
def _cut(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2 - 1])


def _rewrite(called: str, **elements: Any) -> None:
    """The same file with other elements."""

    def spoil(path: Path) -> None:
        from dicom_files import dicom

        path.write_bytes(dicom(np.zeros((24, 32), np.uint16), **elements))

    damage_file((DICOM, "images/red/3.dcm"), called=called)(spoil)


_rewrite("a file holds no pixels", PixelData=None)
_rewrite("a file has one of three frames", NumberOfFrames="3")
_rewrite("a file says it has 65,535 x 65,535 pixels", Rows=65535, Columns=65535)


def _say_syntax(syntax: bytes, called: str) -> None:
    def spoil(path: Path) -> None:
        given = b"UI\x14\x001.2.840.10008.1.2.1\0"
        length = len(syntax) + len(syntax) % 2
        content = path.read_bytes()
        assert given in content
        path.write_bytes(content.replace(given, b"UI" + struct.pack("<H", length) + syntax.ljust(length, b"\0")))

    damage_file((DICOM, "images/red/3.dcm"), called=called)(spoil)


_say_syntax(b"1.2.840.10008.1.2.1.99", "a file is deflated")
_say_syntax(b"1.2.840.10008.1.2.4.100", "a file is a video")


@damage_file((DICOM, "images/red/3.dcm"), called="a file is cut off")
def _cut_pixels(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


@damage_file((DICOM, "images/red/3.dcm"), called="a file ends in its header")
def _cut_header(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:150])


@damage_file((DICOM, "images/red/3.dcm"), called="a file is no DICOM")
def _no_dicom(path: Path) -> None:
    path.write_bytes(b"no image" * 50)


damage_file(IMAGE, NEW, called="an image is a named pipe")(piped)
damage_file(REC, called="the .rec file is a named pipe")(piped)
damage_file((CIFAR, "train.bin"), called="a file is a named pipe")(piped)
damage_file(IMAGE, called="an image is a link to /dev/zero")(linked_to("/dev/zero"))
damage_file(IMAGE, called="an image is a link to nothing")(linked_to("gone"))
damage_file((RECORDS, "images_val.rec"), called="the validation records are a link to nothing")(linked_to("gone"))


@damage_file(IMAGE, called="an image may not be read")
@damage_file((FOLDER, "images/red"), called="a class folder may not be read")
def _forbid(path: Path) -> None:
    path.chmod(0)


@damage_file(IMAGE, called="an image is a text")
def _text(path: Path) -> None:
    path.write_text("no image at all")


@damage_file(IMAGE, called="an image is empty")
def _empty(path: Path) -> None:
    path.write_bytes(b"")


@damage_file(IMAGE, called="an image is PostScript")
def _postscript(path: Path) -> None:
    path.write_text("%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\nshowpage\n%%EOF\n")


@damage_file(IMAGE, NEW, called="an image says it has 100,000 x 100,000 pixels")
def _huge(path: Path) -> None:
    """A few hundred bytes that would take 30 GB."""

    def chunk(name: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    header = struct.pack(">2I5B", 100_000, 100_000, 8, 2, 0, 0, 0)
    body = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + body)


@damage_file(IMAGE, called="an image of floats goes beyond 1")
def _floats(path: Path) -> None:
    Image.fromarray(np.linspace(0, 255, 64, dtype=np.float32).reshape(8, 8)).save(path, "TIFF")


@damage(FOLDER, called="a class folder is empty")
def _empty_class(folder: Path) -> None:
    (folder / "images" / "green").mkdir()


@damage(FOLDER, called="a class folder is named in Latin-1")
def _latin1_class(folder: Path) -> None:
    os.rename(folder / "images" / "red", os.path.join(os.fsencode(folder), b"images", b"caf\xe9"))


@damage(FOLDER, called="a class folder is a link to another")
def _linked_class(folder: Path) -> None:
    (folder / "images" / "green").symlink_to("red")


@damage_file(IMAGE, called="an image is a link into another class")
def _linked_image(path: Path) -> None:
    path.unlink()
    path.symlink_to("../blue/3.png")


@damage(FOLDER, called="a validation image is a link to one that is trained on")
def _linked_validation(folder: Path) -> None:
    (folder / "images").rename(folder / "train")
    write_images(folder / "images" / "val")
    (folder / "train").rename(folder / "images" / "train")
    (folder / "images" / "val" / "red" / "3.png").unlink()
    (folder / "images" / "val" / "red" / "3.png").symlink_to("../../train/red/3.png")


@damage(FOLDER, called="the validation folder is a link to nothing")
def _no_validation(folder: Path) -> None:
    (folder / "images").rename(folder / "train")
    (folder / "images").mkdir()
    (folder / "train").rename(folder / "images" / "train")
    (folder / "images" / "val").symlink_to("gone")


@damage(FOLDER, FILES, called="the path has 5,000 bytes")
def _long_path(folder: Path) -> None:
    (folder / "renamed").write_text(str(folder) + "/x" * 2500)


@damage(FOLDER, called="the folder is a file")
def _no_folder(folder: Path) -> None:
    (folder / "renamed").write_text(str(folder / "renamed"))


@damage_file(IDX_OF, called="the .idx file is no index")
def _no_index(path: Path) -> None:
    path.write_text("nonsense")


def _point_to(offset: int, called: str) -> None:
    def spoil(path: Path) -> None:
        number, _, _ = path.read_text().splitlines()[2].partition("\t")
        path.write_text(path.read_text() + f"99\t{offset}\n")

    damage_file(IDX_OF, called=called)(spoil)


for _offset, _called in (
    (-8, "before the beginning"),
    (1 << 40, "behind the end"),
    (1 << 70, "to 2^70"),
):
    _point_to(_offset, f"the .idx file points {_called}")


@damage_file(IDX_OF, called="the .idx file names a record twice")
def _twice(path: Path) -> None:
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines, lines[0]]))


def _label(value: float, called: str, keeps_names: bool = False) -> None:
    def spoil(folder: Path) -> None:
        path = folder / "images_train.rec"
        content = bytearray(path.read_bytes())
        struct.pack_into("<f", content, int(RecordFile(path).offset_N[2]) + 12, value)
        path.write_bytes(content)
        if not keeps_names:
            (folder / "images_classes.txt").unlink()

    damage(RECORDS, called=called)(spoil)


for _value, _called in ((np.nan, "NaN"), (np.inf, "infinite"), (1e8, "1e8"), (3e9, "3e9"), (0.5, "0.5")):
    _label(_value, f"a label is {_called}")
_label(7, "a label has no class name", keeps_names=True)


def _record_length(length: int, called: str) -> None:
    def spoil(folder: Path) -> None:
        path = folder / "images_train.rec"
        content = bytearray(path.read_bytes())
        struct.pack_into("<I", content, int(RecordFile(path).offset_N[2]) + 4, length)
        path.write_bytes(content)
        (folder / "images_classes.txt").unlink()

    damage(RECORDS, called=called)(spoil)


_record_length(500_000_000, "a record says it has 500 MB")
_record_length(8, "a record is too short for a label")


@damage_file(CLASSES, called="the class names are in Latin-1")
@damage_file((CIFAR, "fine_label_names.txt"), called="the class names are in Latin-1")
def _latin1_names(path: Path) -> None:
    path.write_bytes((b"blue\n" if path.exists() else b"") + b"caf\xe9\n")


@damage_file(CLASSES, called="a class name stands twice")
def _same_names(path: Path) -> None:
    path.write_text("blue\nblue\n")


def _header(called: str, *shape: int, packed: bool = False) -> None:
    def spoil(path: Path) -> None:
        content = idx_header(*shape) + path.read_bytes()[16:]
        path.write_bytes(content)
        if packed:
            path.unlink()
            path.with_name(path.name + ".gz").write_bytes(gzip.compress(content))

    damage_file(IMAGES, called=called)(spoil)


_header("the header says 2^31 images of 2^31 x 2^31", 1 << 31, 1 << 31, 1 << 31)
_header("the header says 2^32 images of 2^16 x 2^16", (1 << 32) - 1, 1 << 16, 1 << 16)
_header("the header says 0 x 0 pixels", 40, 0, 0)
_header("a packed file says 2^31 images", 1 << 31, 28, 28, packed=True)


@damage_file(IMAGES, called="a packed file is cut off")
def _cut_packed(path: Path) -> None:
    content = gzip.compress(path.read_bytes())
    path.unlink()
    path.with_name(path.name + ".gz").write_bytes(content[:-20])


@damage_file(IMAGES, called="the images are a web page")
def _web_page(path: Path) -> None:
    path.write_text("<html>404 Not Found</html>")


@damage_file((IDX, "train-labels-idx1-ubyte"), called="a label is 200")
def _label_of_idx(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1] + bytes([200]))
