"""DICOM files, written by pydicom 2 or 3. Import it after `pytest.importorskip("pydicom")`."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any, List, Optional

import numpy as np
import pydicom
from pydicom.dataset import Dataset, FileDataset, FileMetaDataset
from pydicom.encaps import encapsulate
from pydicom.sequence import Sequence
from pydicom.uid import ExplicitVRLittleEndian, RLELossless

SECRET = "Doe^Jane"
"""Stands where a person is named."""


def describe(pixels: np.ndarray, syntax: str = ExplicitVRLittleEndian, **elements: Any) -> FileDataset:
    """A data set of pixels (H, W) or (H, W, 3).

    Args:
        pixels: whole numbers as they are stored.
        syntax: UID of the transfer syntax.
        elements: others, by keyword; None leaves one out.
    """
    meta = FileMetaDataset()
    meta.TransferSyntaxUID = syntax
    meta.MediaStorageSOPClassUID, meta.MediaStorageSOPInstanceUID = "1.2.840.10008.5.1.4.1.1.2", "1.2.3"
    dataset = FileDataset("", {}, file_meta=meta, preamble=bytes(128))
    dataset.PatientName, dataset.PatientID, dataset.InstitutionName = SECRET, SECRET, SECRET
    dataset.StudyDescription, dataset.PatientComments = SECRET, SECRET
    bits = 8 * pixels.itemsize
    given = {
        "Rows": pixels.shape[0],
        "Columns": pixels.shape[1],
        "SamplesPerPixel": 1 if pixels.ndim == 2 else 3,
        "BitsAllocated": bits,
        "BitsStored": bits,
        "HighBit": elements.get("BitsStored", bits) - 1,
        "PixelRepresentation": int(pixels.dtype.kind == "i"),
        "PhotometricInterpretation": "MONOCHROME2" if pixels.ndim == 2 else "RGB",
        "PlanarConfiguration": None if pixels.ndim == 2 else 0,
        "PixelData": pixels.tobytes(),
        **elements,
    }
    for name, value in given.items():
        if value is not None:
            setattr(dataset, name, value)
    if "PixelData" in dataset:
        dataset["PixelData"].VR = "OW"
        dataset["PixelData"].is_undefined_length = syntax.startswith("1.2.840.10008.1.2.4")
    if pydicom.__version__ < "3":
        dataset.is_little_endian = syntax != "1.2.840.10008.1.2.2"
        dataset.is_implicit_VR = syntax == "1.2.840.10008.1.2"
    return dataset


def describe_frames(frames: np.ndarray, syntax: str = ExplicitVRLittleEndian, **elements: Any) -> FileDataset:
    """A data set of several frames (F, H, W) or (F, H, W, 3); arguments as those of `describe`."""
    return describe(
        frames[0], syntax, **{"NumberOfFrames": str(len(frames)), "PixelData": frames.tobytes(), **elements}
    )


def functional_group(**elements: Any) -> Dataset:
    """A functional group of an enhanced object, of a frame or of all: pixel values, window and place, by keyword."""
    group = Dataset()
    sequences = {
        "PixelValueTransformationSequence": ("RescaleIntercept", "RescaleSlope", "RescaleType"),
        "FrameVOILUTSequence": ("WindowCenter", "WindowWidth", "VOILUTFunction"),
        "PlanePositionSequence": ("ImagePositionPatient",),
        "PlaneOrientationSequence": ("ImageOrientationPatient",),
        "PixelMeasuresSequence": ("PixelSpacing",),
    }
    for sequence, names in sequences.items():
        item = Dataset()
        for name in set(names) & elements.keys():
            setattr(item, name, elements[name])
        if len(item):
            setattr(group, sequence, Sequence([item]))
    return group


def enhanced(
    frames: np.ndarray, groups: List[Dataset], shared: Optional[Dataset] = None, **elements: Any
) -> FileDataset:
    """An enhanced object with a functional group for each frame, and one of all frames."""
    dataset = describe_frames(frames, **elements)
    dataset.PerFrameFunctionalGroupsSequence = Sequence(groups)
    dataset.SharedFunctionalGroupsSequence = Sequence([shared or Dataset()])
    return dataset


def encode(dataset: FileDataset) -> bytes:
    file = io.BytesIO()
    dataset.save_as(file)
    return file.getvalue()


def dicom(pixels: np.ndarray, syntax: str = ExplicitVRLittleEndian, **elements: Any) -> bytes:
    """The bytes of a file; arguments as those of `describe`."""
    return encode(describe(pixels, syntax, **elements))


def rle(pixels: np.ndarray, **elements: Any) -> bytes:
    dataset = describe(pixels, **elements)
    dataset.SOPClassUID, dataset.SOPInstanceUID = "1.2.840.10008.5.1.4.1.1.2", "1.2.3"
    dataset.compress(RLELossless)
    return encode(dataset)


def compressed(pixels: np.ndarray, syntax: str, stream: bytes, **elements: Any) -> bytes:
    """A file that says it holds `pixels`, with this stream in their place."""
    return dicom(pixels, syntax, PixelData=encapsulate([stream]), **elements)


def write_folder(root: Path, count: int = 6, names: tuple = ("ill", "well")) -> Path:
    """A CT of 24 x 32 in each file, `root/CLASS/NUMBER.dcm`; what tells classes apart lies within -160 to 240 units."""
    rng = np.random.RandomState(0)
    for label, name in enumerate(names):
        (root / name).mkdir(parents=True)
        for number in range(count):
            hounsfield = rng.randint(-1000, 1000, (24, 32))
            hounsfield[8:16, 8:24] = 150 * label + rng.randint(-40, 40, (8, 16))
            stored = (hounsfield + 1024).astype(np.uint16)
            (root / name / f"{number}.dcm").write_bytes(
                dicom(stored, BitsStored=12, RescaleSlope="1", RescaleIntercept="-1024")
            )
    return root
