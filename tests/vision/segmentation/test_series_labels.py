"""Label volumes of DICOM series and of DICOM files of several frames: place, order, series that form no volume."""

import gzip

import numpy as np
import pytest

from mxtrain.vision.images.files import ImageFiles, list_slices
from mxtrain.vision.images.settings import Decoding
from mxtrain.vision.images.volume_files import sliced
from mxtrain.vision.segmentation.label_volumes import label_volumes
from mxtrain.vision.segmentation.masked_images import MaskCoding, MaskedImages
from mxtrain.workflows.predict import file_names

pytest.importorskip("pydicom", reason="pydicom is not installed: pip install 'mxtrain[dicom]'")
from dicom_files import describe_frames, dicom, encode, enhanced, functional_group

nibabel = pytest.importorskip("nibabel")
pytestmark = pytest.mark.filterwarnings("ignore:.*:UserWarning:pydicom")  # of what is written
SIZE = (5, 7)
"""(height, width)"""
ROW, COLUMN, _ = np.linalg.qr(np.random.RandomState(3).randn(3, 3))[0].T
NORMAL = np.cross(ROW, COLUMN)
ORIGIN, SPACING, STEP = np.array([-30.0, 12.5, 80.0]), (0.5, 1.25), 2.5
PLANE = [float(f"{cosine:.9f}") for cosine in (*ROW, *COLUMN)]


def position(number, tilt=0.0):
    return [float(f"{one:.7f}") for one in ORIGIN + number * STEP * NORMAL + tilt * number * COLUMN]


def write_slice(path, number, tilt=0.0, size=SIZE, **elements):
    given = {
        "SeriesInstanceUID": "1.2.3",
        "ImagePositionPatient": position(number, tilt),
        "ImageOrientationPatient": PLANE,
        "PixelSpacing": list(SPACING),
        **elements,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(dicom(np.full(size, number, np.uint16), **given))


def volumes_of(paths, values=(0, 1, 300)):
    source = MaskedImages(
        sliced(ImageFiles(paths), "axial"), None, MaskCoding(values), Decoding(shape=(1, 8, 8), frame=(8, 8)), [0.5]
    )
    return label_volumes(source, values)


def require_places(content, class_FHW, values, tilt=0.0):
    """Checks each voxel by the formula of DICOM PS3.3, C.7.6.2.1.1: the label, and the place, in RAS."""
    image = nibabel.Nifti1Image.from_bytes(gzip.decompress(content))
    label_XYZ = np.asarray(image.dataobj)
    assert image.get_sform(coded=True)[1] == 1 and image.header.get_xyzt_units()[0] == "mm"
    assert image.header.get_zooms() == pytest.approx((SPACING[1], SPACING[0], np.hypot(STEP, tilt)), rel=1e-5)
    for number, class_HW in enumerate(class_FHW):
        for row, column in np.ndindex(*class_HW.shape):
            place = np.array(position(number, tilt)) + ROW * SPACING[1] * column + COLUMN * SPACING[0] * row
            found = image.affine @ [column, row, number, 1]
            np.testing.assert_allclose(found[:3], place * [-1, -1, 1], atol=2e-4)
            assert label_XYZ[column, row, number] == values[class_HW[row, column]]


@pytest.mark.parametrize("tilt", [0.0, 0.75])
def test_series(tmp_path, tilt):
    """Names of files in another order than their places; the second series has slices between those of the first."""
    for number, name in enumerate([2, 0, 3, 1]):
        write_slice(tmp_path / f"{name}.dcm", number, tilt)
    for number in range(3):
        write_slice(tmp_path / f"0-{number}.dcm", number + 0.5, SeriesInstanceUID="1.2.4")
    listed = list_slices(tmp_path)
    assert [path.name for path in listed] == ["2.dcm", "0.dcm", "3.dcm", "1.dcm", "0-0.dcm", "0-1.dcm", "0-2.dcm"]
    values = (0, 1, 300)
    first, second = volumes_of(listed, values)
    assert [(one.location, one.samples, one.ending) for one in (first, second)] == [
        (str(tmp_path), range(0, 4), ".nii.gz"),
        (str(tmp_path), range(4, 7), ".nii.gz"),
    ]
    class_FHW = np.random.RandomState(0).randint(0, 3, (4, *SIZE))
    assert [first.add(number, class_FHW[number]) for number in range(4)] == [False] * 3 + [True]
    require_places(first.encode(), class_FHW, values, tilt)
    # Given one by one, in the order of their names.
    (named,) = volumes_of([tmp_path / f"{name}.dcm" for name in range(4)], values)
    for index, number in enumerate([1, 3, 0, 2]):
        named.add(index, class_FHW[number])
    require_places(named.encode(), class_FHW, values, tilt)


def test_frames(tmp_path):
    order = [2, 0, 1]
    groups = [functional_group(ImagePositionPatient=position(number)) for number in order]
    shared = functional_group(ImageOrientationPatient=PLANE, PixelSpacing=list(SPACING))
    (tmp_path / "a.dcm").write_bytes(encode(enhanced(np.zeros((3, *SIZE), np.uint16), groups, shared)))
    (volume,) = volumes_of([tmp_path / "a.dcm"])
    assert (volume.location, volume.samples) == (str(tmp_path / "a.dcm"), range(3))
    class_FHW = np.random.RandomState(0).randint(0, 3, (3, *SIZE))
    for number in range(3):
        volume.add(number, class_FHW[number])
    require_places(volume.encode(), class_FHW, (0, 1, 300))


@pytest.mark.parametrize(
    "elements, reason",
    [
        ({"ImagePositionPatient": position(3)}, "do not lie at equal distances"),
        ({"ImagePositionPatient": position(1)}, "do not lie at equal distances"),
        ({"ImageOrientationPatient": [1, 0, 0, 0, 1, 0]}, "are not parallel"),
        ({"PixelSpacing": [0.5, 1.5]}, "differ in Rows, Columns or PixelSpacing"),
        ({"PixelSpacing": None}, "differ in Rows, Columns or PixelSpacing"),
        ({"size": (5, 8)}, "differ in Rows, Columns or PixelSpacing"),
        ({"SeriesInstanceUID": "1.2.4"}, ""),
        ({"ImagePositionPatient": None}, ""),
    ],
)
def test_slices_that_form_no_volume(tmp_path, caplog, elements, reason):
    write_slice(tmp_path / "0.dcm", 0)
    write_slice(tmp_path / "1.dcm", 1)
    write_slice(tmp_path / "2.dcm", 2, **elements)
    found = volumes_of(list_slices(tmp_path))
    assert bool(found) == (not reason)
    assert reason in caplog.text and bool(caplog.text) == bool(reason)


@pytest.mark.parametrize("positions", [[0, 0, 0], [0, 1, 1], [0, 0.6, 1.4, 2]])
def test_uneven_slices(tmp_path, caplog, positions):
    for number, place in enumerate(positions):
        write_slice(tmp_path / f"{number}.dcm", place)
    assert not volumes_of(list_slices(tmp_path))
    assert f"the slices in '{tmp_path}' have a mask each instead of a label volume, since they do not" in caplog.text


def test_series_with_a_file_of_no_place_between_its_slices(tmp_path, caplog):
    for number in range(4):
        write_slice(tmp_path / f"{number}.dcm", number, **({"ImagePositionPatient": None} if number == 2 else {}))
    write_slice(tmp_path / "4.dcm", 4)
    assert not volumes_of(list_slices(tmp_path))
    assert "files without a place, or of another series, lie between them" in caplog.text


def test_films_have_no_label_volume(tmp_path, caplog):
    (tmp_path / "a.dcm").write_bytes(encode(describe_frames(np.zeros((3, *SIZE), np.uint16))))
    assert not volumes_of([tmp_path / "a.dcm"]) and not caplog.text


@pytest.mark.parametrize("spacing", [None, [0, 0]])
def test_spacing_is_missing(tmp_path, caplog, spacing):
    for number in range(2):
        write_slice(tmp_path / f"{number}.dcm", number, PixelSpacing=spacing)
    assert not volumes_of(list_slices(tmp_path))
    assert "they do not say their PixelSpacing" in caplog.text


class Joined:
    ending = ".nii.gz"

    def __init__(self, location, samples):
        self.location, self.samples = str(location), samples


def test_names_of_label_volumes(tmp_path):
    """Folders keep dots in their names; a second series of a folder is numbered."""
    one, other = tmp_path / "ct" / "1.2.840", tmp_path / "ct" / "b"
    for folder in (one, other):
        folder.mkdir(parents=True)
    files = [str(one / f"{number}.dcm") for number in range(4)]
    joined = [Joined(one, range(2)), Joined(one, range(2, 4))]
    assert file_names(files, joined=joined) == ["1.2.840.nii.gz"] * 2 + ["1.2.840-2.nii.gz"] * 2
    files += [str(other / "0.dcm"), str(other / "1.dcm"), str(other / "x.png")]
    joined.append(Joined(other, range(4, 6)))
    assert file_names(files, joined=joined)[3:] == ["1.2.840-2.nii.gz", "b.nii.gz", "b.nii.gz", "b/x.png"]
