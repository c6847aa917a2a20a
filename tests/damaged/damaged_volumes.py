"""Damaged volumes (NIfTI) and their label volumes, DICOM files of several frames, and TIFF files of several bands."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any, Callable, List

import numpy as np
import pytest
from damage import Case, damage, damage_file, kind, linked_to, piped, read_splits, removed
from nifti_files import LPS, nifti, write_labelled, write_volumes

from mxtrain.vision.classification.image_folder import ImageFolder
from mxtrain.vision.segmentation.segmentation_folder import SegmentationFolder

VOLUMES, LABELS, BANDS = "NIfTI volumes", "NIfTI label volumes", "TIFF files of five bands"
FRAMES = "DICOM files of several frames"
SLICES = "DICOM label images"
VOLUME, LABEL = (VOLUMES, "ct/ill/p1i/ct.nii.gz"), (LABELS, "mr/masks/1.nii.gz")

CASES: List[Case] = [
    Case(VOLUMES, "a file is cut off", "it is cut off: its values end at byte 4,192", 1),
    Case(VOLUMES, "a file is empty", "it does not begin with a header of NIfTI, or is cut off"),
    Case(VOLUMES, "a file is a text", "it does not begin with a header of NIfTI, or is cut off"),
    Case(VOLUMES, "a packed file is changed", "its packed content is damaged (gzip)", 1),
    Case(VOLUMES, "the header says 30,000 x 30,000 x 30,000 values", "at most 4,294,967,296 are read"),
    Case(VOLUMES, "the header says -1 slices", "its sizes are [3, 20, 24, -1"),
    Case(VOLUMES, "the values are RGB", "its values are RGB, and whole numbers and floats are read"),
    Case(VOLUMES, "the values are in an .img file", "its values are in another file (.img)"),
    Case(VOLUMES, "the orientation is missing", "it does not say its orientation (qform_code and sform_code are 0)"),
    Case(VOLUMES, "the orientation is singular", "its map to millimetres (sform, qform) is not invertible"),
    Case(VOLUMES, "a value is NaN", "some of its values are no finite numbers", 1),
    Case(VOLUMES, "a file is a named pipe", "ct.nii.gz' is a named pipe"),
    Case(VOLUMES, "a file is a link to nothing", "ct.nii.gz' is a link to nothing"),
    Case(LABELS, "the labels have another size", "has 4 x 20 x 24 axial slices, rows and columns, and its image", 1),
    Case(LABELS, "the labels lie elsewhere", "mm away from its image", 1),
    Case(LABELS, "a label is 7", "holds the value 7, which is no class", 1),
    Case(LABELS, "a label is 0.5", "its values are no whole numbers", 1),
    Case(LABELS, "a label volume is missing", "has no mask: there is no"),
    Case(LABELS, "a label volume is cut off", "1.nii.gz' cannot be read as a mask (it is cut off", 1),
    Case(FRAMES, "a file is cut off", "it is cut off: its pixels take 4,608 bytes, and 4,208 follow"),
    Case(FRAMES, "a file says it has 90 frames", "it has 90 frames, and functional groups of 3: it is damaged"),
    Case(FRAMES, "a file says it has 2^31 frames", "its NumberOfFrames is 2147483648, and 1 to"),
    Case(FRAMES, "a table divides no frames", "and no valid offset table says which are a frame", 1),
    Case(FRAMES, "a slope is 0", "its RescaleSlope is 0, which makes all pixels alike", 1),
    Case(SLICES, "a mask is cut off", "masks/1.dcm' cannot be read as a mask (it is cut off", 1),
    Case(SLICES, "a mask is empty", "masks/1.dcm' cannot be read as a mask", 1),
    Case(SLICES, "a mask is a text", "masks/1.dcm' cannot be read as a mask", 1),
    Case(SLICES, "a mask has another size", "a mask must be as large as its image", 1),
    Case(SLICES, "a mask lies elsewhere", "mm away from its image"),
    Case(SLICES, "a mask has several frames", "it has 3 frames, and one is expected here", 1),
    Case(SLICES, "a mask is in colour", "it is in colour (RGB), and values are grey", 1),
    Case(SLICES, "a mask is a segmentation object", "it is a segmentation object (DICOM SEG) of the type BINARY", 1),
    Case(SLICES, "a value is 7", "holds the value 7, which is no class", 1),
    Case(SLICES, "a value is 0.5", "its values are no whole numbers", 1),
    Case(SLICES, "a mask is missing", "has no mask: there is no"),
    Case(SLICES, "a mask is a named pipe", "masks/1.dcm' is a named pipe"),
    Case(BANDS, "a file is cut off", "its pixels are damaged", 1),
    Case(BANDS, "a file has four bands", "it has 4 bands, and dataset.channels=5: type dataset.channels=4", 1),
    Case(BANDS, "a file is grey", "it has 1 bands, and dataset.channels=5", 1),
    Case(BANDS, "a file has floats beyond 1", "they must lie between 0 and 1, white", 1),
]


@kind(VOLUMES)
def _volumes(folder: Path) -> Callable[[], None]:
    write_volumes(folder / "ct", count=3)
    return read_splits(ImageFolder(root=str(folder / "ct"), channels=1, image_size=8, window=[300, 2000]))


@kind(LABELS)
def _labels(folder: Path) -> Callable[[], None]:
    write_labelled(folder / "mr", count=3)
    settings = {"channels": 1, "image_size": 8, "window": "percentile", "val_fraction": 0.34}
    return read_splits(SegmentationFolder(root=str(folder / "mr"), **settings))


@kind(FRAMES)
def _frames(folder: Path) -> Callable[[], None]:
    pytest.importorskip("pydicom", reason="pydicom is not installed: pip install 'mxtrain[dicom]'")
    for name in ("ill", "well"):
        (folder / "ct" / name).mkdir(parents=True)
        for number in range(3):
            (folder / "ct" / name / f"{number}.dcm").write_bytes(_enhanced())
    settings = {"channels": 1, "image_size": 8, "window": "full", "mean": [0.1], "std": [0.1]}
    return read_splits(ImageFolder(root=str(folder / "ct"), val_fraction=0.34, **settings))


def _enhanced(slope: str = "2", **elements: Any) -> bytes:
    from dicom_files import encode, enhanced, functional_group

    groups = [functional_group(RescaleSlope=slope, RescaleIntercept="-1024") for _ in range(3)]
    return encode(enhanced(np.full((3, 24, 32), 9, np.uint16), groups, **elements))


@kind(SLICES)
def _slices(folder: Path) -> Callable[[], None]:
    pytest.importorskip("pydicom", reason="pydicom is not installed: pip install 'mxtrain[dicom]'")
    for name in ("images", "masks"):
        (folder / "mr" / name).mkdir(parents=True)
        for number in range(3):
            (folder / "mr" / name / f"{number}.dcm").write_bytes(_slice(number))
    (folder / "mr" / "classes.txt").write_text("background\ntumour\n")
    settings = {"channels": 1, "image_size": 8, "window": "full", "val_fraction": 0.34, "split_by": "file"}
    return read_splits(SegmentationFolder(root=str(folder / "mr"), **settings))


def _slice(number: int = 1, pixels: Any = None, **elements: Any) -> bytes:
    from dicom_files import dicom

    place = {"ImagePositionPatient": [0, 0, number], "ImageOrientationPatient": [1, 0, 0, 0, 1, 0]}
    return dicom(np.ones((24, 20), np.uint8) if pixels is None else pixels, **{**place, **elements})


@kind(BANDS)
def _bands(folder: Path) -> Callable[[], None]:
    pytest.importorskip("tifffile", reason="tifffile is not installed: pip install 'mxtrain[tiff]'")
    pytest.importorskip("imagecodecs", reason="imagecodecs is not installed: pip install 'mxtrain[tiff]'")
    from tiff_files import write_bands

    write_bands(folder / "images", count=4)
    return read_splits(ImageFolder(root=str(folder / "images"), image_size=8, mean=[0.1] * 5, std=[0.1] * 5))


def _rewrite(called: str, values: Any = None, **fields: Any) -> None:
    """The same volume with other fields."""

    def spoil(path: Path) -> None:
        given = np.zeros((20, 24, 4), np.int16) if values is None else values
        path.write_bytes(gzip.compress(nifti(given, **fields), 1))

    damage_file(VOLUME, called=called)(spoil)


_rewrite("the header says 30,000 x 30,000 x 30,000 values", dim=[3, 30000, 30000, 30000, 1, 1, 1, 1])
_rewrite("the header says -1 slices", dim=[3, 20, 24, -1, 1, 1, 1, 1])
_rewrite("the values are RGB", code=128)
_rewrite("the values are in an .img file", magic=b"ni1\0")
_rewrite("the orientation is missing", affine_44=None)
_rewrite("the orientation is singular", affine_44=np.zeros((4, 4)), spacing=[1, 1, 1])
_rewrite("a value is NaN", np.full((20, 24, 4), np.nan, np.float32))


@damage_file(VOLUME, called="a file is cut off")
@damage_file(LABEL, called="a label volume is cut off")
def _cut(path: Path) -> None:
    path.write_bytes(gzip.compress(gzip.decompress(path.read_bytes())[:-10]))


@damage_file(VOLUME, called="a file is empty")
def _empty(path: Path) -> None:
    path.write_bytes(b"")


@damage_file(VOLUME, called="a file is a text")
def _text(path: Path) -> None:
    path.write_text("no volume at all, " * 100)


@damage_file(VOLUME, called="a packed file is changed")
def _change(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[2000:2200] = b"\xff" * 200
    path.write_bytes(content)


damage_file(VOLUME, called="a file is a named pipe")(piped)
damage_file(VOLUME, called="a file is a link to nothing")(linked_to("gone"))


def _relabel(called: str, values: np.ndarray, affine_44: np.ndarray = LPS) -> None:
    def spoil(path: Path) -> None:
        path.write_bytes(gzip.compress(nifti(values, affine_44), 1))

    damage_file(LABEL, called=called)(spoil)


_relabel("the labels have another size", np.zeros((24, 20, 4), np.uint8))
_relabel("the labels lie elsewhere", np.zeros((24, 20, 5), np.uint8), np.diag([-1.0, -1.0, -1.0, 1.0]))
_relabel("a label is 7", np.full((24, 20, 5), 7, np.uint8))
_relabel("a label is 0.5", np.full((24, 20, 5), 0.5, np.float32))


def _reframe(called: str, write: Callable[[], bytes]) -> None:
    damage_file((FRAMES, "ct/ill/1.dcm"), called=called)(lambda path: path.write_bytes(write()))


def _without_table() -> bytes:
    from dicom_files import describe_frames, encode
    from pydicom.encaps import encapsulate

    data = encapsulate([bytes(300)] * 3, fragments_per_frame=2, has_bot=False)
    return encode(describe_frames(np.zeros((3, 24, 32), np.uint8), "1.2.840.10008.1.2.4.50", PixelData=data))


_reframe("a file is cut off", lambda: _enhanced()[:-400])
_reframe("a file says it has 90 frames", lambda: _enhanced(NumberOfFrames="90"))
_reframe("a file says it has 2^31 frames", lambda: _enhanced(NumberOfFrames="2147483648"))
_reframe("a table divides no frames", _without_table)
_reframe("a slope is 0", lambda: _enhanced(slope="0"))


@damage(LABELS, called="a label volume is missing")
def _missing(folder: Path) -> None:
    (folder / "mr" / "masks" / "1.nii.gz").unlink()


def _rewrite_bands(called: str, *shape: int, dtype: str = "uint16", value: int = 300) -> None:
    def spoil(path: Path) -> None:
        from tiff_files import tiff

        path.write_bytes(tiff(np.full(shape, value, dtype)))

    damage_file((BANDS, "images/water/3.tif"), called=called)(spoil)


_rewrite_bands("a file has four bands", 24, 32, 4)
_rewrite_bands("a file is grey", 24, 32)
_rewrite_bands("a file has floats beyond 1", 24, 32, 5, dtype="float32")


@damage_file((BANDS, "images/water/3.tif"), called="a file is cut off")
def _cut_bands(path: Path) -> None:
    from tiff_files import planar

    content = planar(np.random.RandomState(0).randint(0, 999, (24, 32, 5)).astype(np.uint16), compression="zlib")
    path.write_bytes(content[:-3000])


def _relabel_slice(called: str, write: Callable[[], bytes]) -> None:
    damage_file((SLICES, "mr/masks/1.dcm"), called=called)(lambda path: path.write_bytes(write()))


def _frames_of_labels() -> bytes:
    from dicom_files import describe_frames, encode

    return encode(describe_frames(np.ones((3, 24, 20), np.uint8)))


_relabel_slice("a mask is cut off", lambda: _slice()[:-100])
_relabel_slice("a mask is empty", bytes)
_relabel_slice("a mask is a text", lambda: b"no mask at all, " * 100)
_relabel_slice("a mask has another size", lambda: _slice(pixels=np.ones((24, 21), np.uint8)))
_relabel_slice("a mask lies elsewhere", lambda: _slice(number=9))
_relabel_slice("a mask has several frames", _frames_of_labels)
_relabel_slice("a mask is in colour", lambda: _slice(pixels=np.ones((24, 20, 3), np.uint8)))
_relabel_slice("a mask is a segmentation object", lambda: _slice(SegmentationType="BINARY"))
_relabel_slice("a value is 7", lambda: _slice(pixels=np.full((24, 20), 7, np.uint8)))
_relabel_slice("a value is 0.5", lambda: _slice(RescaleSlope="0.5", RescaleIntercept="0"))
damage_file((SLICES, "mr/masks/1.dcm"), called="a mask is missing")(removed)
damage_file((SLICES, "mr/masks/1.dcm"), called="a mask is a named pipe")(piped)
