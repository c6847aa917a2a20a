"""DICOM label images as masks of DICOM images: of one frame and of several, places, files that are no label images."""

import numpy as np
import pytest

from mxtrain.data.spec import open_splits
from mxtrain.errors import DataError, LoaderError
from mxtrain.vision.segmentation.segmentation_folder import SegmentationFolder

pytest.importorskip("pydicom", reason="pydicom is not installed: pip install 'mxtrain[dicom]'")
from dicom_files import describe, describe_frames, dicom, encode, enhanced, functional_group

pytestmark = pytest.mark.filterwarnings("ignore:.*:UserWarning:pydicom")  # of what is written
SIZE = (16, 20)
AXIAL = [1, 0, 0, 0, 1, 0]


def place(height, **elements):
    return {
        "ImagePositionPatient": [0, 0, height],
        "ImageOrientationPatient": AXIAL,
        "PixelSpacing": [0.5, 0.75],
        **elements,
    }


def masks(count=4, value=1):
    mask_NHW = np.zeros((count, *SIZE), np.uint16)
    for number, mask_HW in enumerate(mask_NHW):
        mask_HW[number : number + 5, 3:9] = value
    return mask_NHW


def folder_of(root, names=("a.dcm", "b.dcm", "IM0001", "1.2.840.9")):
    """Slices in an order of their own, each with a mask of its name."""
    mask_NHW = masks(len(names))
    for kind in ("images", "masks"):
        (root / kind).mkdir(parents=True)
    (root / "classes.txt").write_text("background\nlesion\n")
    for number, name in enumerate(names):
        (root / "images" / name).write_bytes(dicom(mask_NHW[number] * 900, **place(9.0 - number)))
        (root / "masks" / name).write_bytes(dicom(mask_NHW[number], **place(9.0 - number)))
    return root


def read_all(root, **settings):
    dataset = SegmentationFolder(root=str(root), channels=1, window="full", image_size=list(SIZE), val_fraction=0.5)
    splits = open_splits(dataset.model_copy(update={"split_by": "file", **settings}))
    return [source.fetch(np.arange(len(source)), seed=0, epoch=0, train=False) for source in (splits.train, splits.val)]


def require_paired(parts, count):
    """The bright part of each image is that with label 1."""
    assert sum(len(part[0]) for part in parts) == count
    for image_B1HW, mask_BHW, *_ in parts:
        assert np.array_equal(image_B1HW[:, 0] > image_B1HW.min(), mask_BHW == 1) and (mask_BHW == 1).any()


def test_label_images_of_one_frame(tmp_path):
    require_paired(read_all(folder_of(tmp_path)), 4)


def test_rescaled_labels(tmp_path):
    root = folder_of(tmp_path)
    stored = masks()[0].astype(np.uint8) + 7
    (root / "masks" / "a.dcm").write_bytes(dicom(stored, RescaleIntercept="-7", RescaleSlope="1", **place(9.0)))
    require_paired(read_all(root), 4)


def frames(values, heights, kind=AXIAL):
    groups = [functional_group(ImagePositionPatient=[0, 0, height]) for height in heights]
    return encode(enhanced(values, groups, functional_group(ImageOrientationPatient=kind, PixelSpacing=[0.5, 0.75])))


def folder_of_frames(root, labels=None):
    """Two files of several frames, whose masks have the frames in another order."""
    mask_NHW = masks()
    for kind in ("images", "masks"):
        (root / kind).mkdir(parents=True)
    (root / "classes.txt").write_text("background\nlesion\n")
    for name in ("a.dcm", "b.dcm"):
        (root / "images" / name).write_bytes(frames(mask_NHW * 900, [3.0, 2.0, 1.0, 0.0]))
        (root / "masks" / name).write_bytes(frames(mask_NHW[[1, 3, 0, 2]], [2.0, 0.0, 3.0, 1.0]))
    if labels is not None:
        (root / "masks" / "a.dcm").write_bytes(labels)
    return root


def test_label_images_of_several_frames(tmp_path):
    require_paired(read_all(folder_of_frames(tmp_path)), 8)


@pytest.mark.parametrize(
    "labels, said",
    [
        (lambda: frames(masks(3), [3.0, 2.0, 1.0]), "has 3 axial slices, rows and columns|has 3 x 16 x 20"),
        (lambda: frames(masks(), [4.0, 3.0, 2.0, 1.0]), "a.dcm' lies up to 1 mm away from its image .*a.dcm'"),
        (lambda: frames(masks(), [3.0, 2.0, 1.0, 0.0], [0.8, 0.6, 0, -0.6, 0.8, 0]), "a.dcm' lies up to"),
        (lambda: encode(describe_frames(masks())), "do not say their places, so that they cannot be paired"),
        (
            lambda: dicom(masks()[0]),
            "a.dcm' is an image, and its image slice 0 of .* is a DICOM file of several frames",
        ),
        (lambda: frames(masks(value=7), [3.0, 2.0, 1.0, 0.0]), "holds the value 7, which is no class"),
    ],
)
def test_frames_that_are_no_masks_of_the_frames(tmp_path, labels, said):
    with pytest.raises((DataError, LoaderError), match=said):
        read_all(folder_of_frames(tmp_path, labels()))


def test_frames_without_places_are_paired_in_the_order_of_their_files(tmp_path):
    root = folder_of_frames(tmp_path)
    for name in ("a.dcm", "b.dcm"):
        (root / "images" / name).write_bytes(encode(describe_frames(masks() * 900)))
        (root / "masks" / name).write_bytes(encode(describe_frames(masks())))
    require_paired(read_all(root), 8)


@pytest.mark.parametrize(
    "elements, is_near", [(place(9.4), True), (place(9.6), False), (place(5.0), False), ({}, True)]
)
def test_places_of_masks(tmp_path, elements, is_near):
    """Up to a side of a pixel away; masks that do not say their place are taken by their names."""
    root = folder_of(tmp_path)
    (root / "masks" / "a.dcm").write_bytes(dicom(masks()[0], **elements))
    if is_near:
        require_paired(read_all(root), 4)
        return
    with pytest.raises(
        DataError, match=r"masks/a.dcm' lies .* mm away from its image '.*images/a.dcm', by their Image"
    ):
        read_all(root)


def test_a_turned_mask_lies_elsewhere(tmp_path):
    root = folder_of(tmp_path)
    turned = place(9.0, ImageOrientationPatient=[0, 1, 0, 1, 0, 0])
    (root / "masks" / "a.dcm").write_bytes(dicom(masks()[0], **turned))
    with pytest.raises(DataError, match="masks/a.dcm' lies"):
        read_all(root)


@pytest.mark.parametrize("kind", ["BINARY", "FRACTIONAL"])
def test_segmentation_objects_are_refused(tmp_path, kind):
    root = folder_of(tmp_path)
    (root / "masks" / "a.dcm").write_bytes(encode(describe(masks()[0].astype(np.uint8), SegmentationType=kind)))
    with pytest.raises(
        (DataError, LoaderError),
        match=r"a.dcm' cannot be read as a mask \(it is a segmentation object \(DICOM SEG\) of",
    ):
        read_all(root)
    (root / "masks" / "a.dcm").write_bytes(encode(describe(masks()[0].astype(np.uint8), SegmentationType="LABELMAP")))
    require_paired(read_all(root), 4)
