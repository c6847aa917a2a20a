"""NIfTI volumes: the header and the direction of slices, by the text of nifti1.h and as nibabel reads them."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import gzip
import itertools
import struct

import nifti_files
import numpy as np
import pytest
from nifti_files import LPS, RAS, nifti

from mxtrain.data.loading.opening import ImageNeedsSetting, ImageTooLarge
from mxtrain.vision.images import nifti as nifti_module
from mxtrain.vision.images.nifti import (
    distance_of_corners,
    is_nifti,
    is_packed_nifti,
    open_volume,
    read_header,
    values_in,
)
from mxtrain.vision.images.nifti_labels import encode_labels
from mxtrain.vision.images.pixels import ImageReader
from mxtrain.vision.images.volume_slice import VolumeSlice

SHAPE = (5, 6, 7)


@pytest.fixture(scope="module")
def values():
    """A value of its own in each voxel."""
    return np.arange(np.prod(SHAPE), dtype=np.int16).reshape(SHAPE)


def slices(content, direction):
    volume = open_volume(content, direction)
    return np.stack([volume.values(number)[0] for number in range(volume.num_slices)])


def expected_slices(values, affine_44, direction):
    """Slices of the voxels whose coordinates in space are sorted: superior, anterior and right first or last."""
    index_N3 = np.indices(values.shape).reshape(3, -1).T
    right_N, anterior_N, superior_N = (index_N3 @ affine_44[:3, :3].T + affine_44[:3, 3]).T
    # (number, row, column), each ascending
    keys = {
        "axial": (superior_N, -anterior_N, -right_N),
        "coronal": (anterior_N, -superior_N, -right_N),
        "sagittal": (right_N, -superior_N, -anterior_N),
    }[direction]
    ranks = [np.unique(key.round(6), return_inverse=True)[1] for key in keys]
    result = np.zeros([rank.max() + 1 for rank in ranks])
    result[tuple(ranks)] = values.ravel()
    return result


AFFINES = {
    "RAS": RAS,
    "LPS": LPS,
    "PIR": np.array([[0, 0, 1, -3], [-1, 0, 0, 9], [0, -1, 0, 2], [0, 0, 0, 1.0]]),
    "SLA": np.array([[0, -1, 0, 0], [0, 0, 1, 0], [1, 0, 0, 0], [0, 0, 0, 1.0]]),
}


@pytest.mark.parametrize("direction", ["axial", "coronal", "sagittal"])
@pytest.mark.parametrize("name", AFFINES)
def test_slices_follow_the_orientation_of_the_file(values, name, direction):
    affine_44 = AFFINES[name]
    assert np.array_equal(slices(nifti(values, affine_44), direction), expected_slices(values, affine_44, direction))


def test_slices_along_stored_axes(values):
    content = nifti(values, None)
    assert np.array_equal(slices(content, "k"), values.transpose(2, 1, 0))
    assert np.array_equal(slices(content, "j"), values.transpose(1, 2, 0))
    assert np.array_equal(slices(content, "i"), values.transpose(0, 2, 1))
    with pytest.raises(ImageNeedsSetting, match=r"does not say its orientation .*dataset.slice_axis=k"):
        open_volume(content, "axial")


@pytest.mark.parametrize("kind", nifti_files.CODES)
@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("second", [False, True])
def test_types_byte_orders_and_versions(kind, order, second):
    values = np.arange(24).reshape(2, 3, 4).astype(kind)
    content = nifti(values, order=order, second=second, slope=2.0, intercept=-3.0)
    assert is_nifti(content) and is_packed_nifti(gzip.compress(content))
    for form in (content, gzip.compress(content)):
        volume = open_volume(form, "k")
        assert np.array_equal(volume.values(1)[0], values[:, :, 1].T * 2.0 - 3.0)


@pytest.mark.parametrize("slope", [0.0, float("nan"), float("inf")])
def test_a_slope_that_is_none_leaves_values(slope):
    header = read_header(nifti(np.zeros((2, 2, 2), np.int16), slope=slope, intercept=5.0))
    assert (header.slope, header.intercept) == (1.0, 0.0)


@pytest.mark.parametrize("quaternion", [(0, 0, 0), (0, 0, 1), (0.5, 0.5, 0.5), (0.1, -0.2, 0.3)])
@pytest.mark.parametrize("factor", [-1.0, 1.0])
def test_orientation_by_quaternion(quaternion, factor):
    """qform is the orientation if sform_code is 0; the third axis is mirrored by pixdim[0] = -1."""
    content = bytearray(nifti(np.zeros(SHAPE, np.int16)))
    struct.pack_into("<8f", content, 76, factor, 2.0, 3.0, 4.0, 1, 1, 1, 1)
    struct.pack_into("<2h", content, 252, 1, 0)
    struct.pack_into("<6f", content, 256, *quaternion, 10.0, 20.0, 30.0)
    affine_34 = read_header(bytes(content)).affine_34
    b, c, d = quaternion
    a = np.sqrt(max(0.0, 1 - b * b - c * c - d * d))

    def turned(vector):
        """The vector part of q v q*, in another formula than that of the header."""
        pure = np.array([b, c, d])
        return vector + 2 * a * np.cross(pure, vector) + 2 * np.cross(pure, np.cross(pure, vector))

    steps = np.array([2.0, 3.0, 4.0 * factor])
    expected = np.column_stack([*(turned(np.eye(3)[axis]) * steps[axis] for axis in range(3)), [10, 20, 30]])
    np.testing.assert_allclose(affine_34, expected, atol=1e-6)


def turned_axes(rng):
    """Orthogonal axes, each nearest to a direction of its own: otherwise nibabel 5.3 takes directions in the order of
    the axes, and nibabel 5.4, as we do, the nearest first."""
    while True:
        axes_33 = np.linalg.qr(rng.randn(3, 3))[0]
        if len(set(np.abs(axes_33).argmax(axis=0))) == 3:
            return axes_33


def test_the_axis_nearest_to_a_direction_comes_first():
    """The second axis is nearer to the direction right than the first one, which then is superior."""
    axes_33 = np.array([[0.62, 0.78, 0.08], [0.5, -0.31, -0.81], [-0.6, 0.54, -0.58]])
    affine_44 = np.eye(4)
    affine_44[:3, :3] = np.linalg.qr(axes_33)[0]
    assert np.abs(affine_44[:3, :3]).argmax(axis=0)[:2].tolist() == [0, 0]
    assert read_header(nifti(np.zeros(SHAPE, np.int16), affine_44)).orientation[0][0] == 1


def test_axes_are_those_of_nibabel_for_oblique_volumes():
    nibabel = pytest.importorskip("nibabel", reason="nibabel is not installed, whose directions are compared")
    rng = np.random.RandomState(0)
    for _ in range(50):
        affine_44 = np.eye(4)
        affine_44[:3, :3] = turned_axes(rng) * rng.uniform(0.5, 3, 3)
        found = read_header(nifti(np.zeros(SHAPE, np.int16), affine_44)).orientation
        expected = {int(row): (axis, int(sign)) for axis, (row, sign) in enumerate(nibabel.io_orientation(affine_44))}
        assert found == (expected[0], expected[1], expected[2])


def test_percentiles_of_each_of_several_volumes(values):
    both = np.stack([values, 10 * values], -1)
    image_CHW = read(VolumeSlice(open_volume(nifti(both), "k"), 3), "percentile", 2)
    np.testing.assert_allclose(image_CHW[0], image_CHW[1], atol=1e-3)


def test_percentiles_of_large_volumes_are_those_of_all_planes(monkeypatch):
    """Every 64th of the values of a side of 16 would be those of the first plane, which is air here."""
    monkeypatch.setattr(nifti_module, "_PERCENTILE_VALUES", 64)
    values_XYZ = np.zeros((16, 16, 16), np.int16)
    values_XYZ[1:] = 1000
    assert open_volume(nifti(values_XYZ), "k").ranges() == [(0.0, 1000.0)]


def test_sform_comes_before_qform():
    content = bytearray(nifti(np.zeros(SHAPE, np.int16), LPS))
    struct.pack_into("<2h", content, 252, 1, 1)
    assert np.array_equal(read_header(bytes(content)).affine_34, LPS[:3])


@pytest.mark.parametrize("direction", ["axial", "coronal", "sagittal"])
def test_files_of_nibabel_are_read_as_nibabel_does(tmp_path, direction):
    nibabel = pytest.importorskip("nibabel", reason="nibabel is not installed, with which these files are written")
    rng = np.random.RandomState(0)
    for name, suffix in (("Nifti1Image", ".nii.gz"), ("Nifti2Image", ".nii")):
        affine_44 = np.eye(4)
        affine_44[:3] = np.column_stack([turned_axes(rng) * [1.0, 0.5, 2.0], [5, -7, 9]])
        image = getattr(nibabel, name)(rng.randint(-99, 99, SHAPE).astype(np.int16), affine_44)
        image.header.set_slope_inter(0.5, 10.0)
        path = tmp_path / f"a{suffix}"
        nibabel.save(image, path)
        closest = nibabel.as_closest_canonical(nibabel.load(path)).get_fdata()
        shown = {
            "axial": closest.transpose(2, 1, 0)[:, ::-1, ::-1],
            "coronal": closest.transpose(1, 2, 0)[:, ::-1, ::-1],
            "sagittal": closest.transpose(0, 2, 1)[:, ::-1, ::-1],
        }[direction]
        np.testing.assert_allclose(slices(path.read_bytes(), direction), shown, atol=1e-4)
        np.testing.assert_allclose(read_header(path.read_bytes()).affine_34, affine_44[:3], atol=1e-5)


def test_pixels_become_square(values):
    affine_44 = np.diag([1.0, 2.0, 3.0, 1.0])
    volume = open_volume(nifti(values, affine_44), "coronal")
    assert volume.size == (5, 21)  # 7 rows of 3 mm and 5 columns of 1 mm
    image_1HW = read(VolumeSlice(volume, 0), "percentile")
    assert image_1HW.shape == (1, 21, 5)
    labels = open_volume(nifti(np.ones(SHAPE, np.uint8), affine_44), "sagittal").labels(0)
    assert labels.shape == (10, 6) or labels.shape == (round(7 * 1.5), 6)
    assert open_volume(nifti(values, np.diag([1.0, 1.009, 3.0, 1.0])), "axial").size == (5, 6)
    assert open_volume(nifti(values, np.diag([1.0, 1.02, 3.0, 1.0])), "axial").size == (5, 6)
    assert open_volume(nifti(values, np.diag([1.0, 1.5, 3.0, 1.0])), "axial").size == (5, 9)
    long = np.zeros((2, 100, 1), np.int16)
    assert open_volume(nifti(long, np.diag([1.0, 1.009, 3.0, 1.0])), "axial").size == (2, 100)
    assert open_volume(nifti(long, np.diag([1.0, 1.02, 3.0, 1.0])), "axial").size == (2, 102)


def read(part, window, channels=1):
    image = ImageReader(part, window)
    return image.resized((0, 0, *image.size), image.size, channels)


def test_windows_of_volumes(values):
    volume = open_volume(nifti(values), "k")
    exact_HW = np.clip((values[:, :, 2].T.astype(float) - 100) / 150 + 0.5, 0, 1) * 255
    np.testing.assert_allclose(read(VolumeSlice(volume, 2), (100.0, 150.0))[0], exact_HW, atol=1e-4)
    low, high = np.percentile(values, [0.5, 99.5])  # those of the volume, not of the slice
    shown_HW = np.clip((values[:, :, 2].T - low) / (high - low), 0, 1) * 255
    np.testing.assert_allclose(read(VolumeSlice(volume, 2), "percentile")[0], shown_HW, atol=1e-4)
    np.testing.assert_allclose(read(VolumeSlice(volume, 2), "full")[0], values[:, :, 2].T / 32767 * 255, atol=1e-4)
    with pytest.raises(ImageNeedsSetting, match=r"its values, from 2 to 205 in slice 2, have no scale: type .*percent"):
        read(VolumeSlice(volume, 2), "auto")
    bounded = open_volume(nifti(values, bounds=(50, 150)), "k")
    bounded_HW = np.clip((values[:, :, 2].T.astype(float) - 50) / 100, 0, 1) * 255
    np.testing.assert_allclose(read(VolumeSlice(bounded, 2), "auto")[0], bounded_HW, atol=1e-4)
    with pytest.raises(ValueError, match="none may be below 0, black"):
        read(VolumeSlice(open_volume(nifti(values - 5), "k"), 0), "full")


def test_bytes_need_no_window():
    values = np.arange(210, dtype=np.uint8).reshape(SHAPE)
    image_1HW = read(VolumeSlice(open_volume(nifti(values), "k"), 3), "auto")
    assert image_1HW.dtype == np.uint8 and np.array_equal(image_1HW[0], values[:, :, 3].T)
    assert read(VolumeSlice(open_volume(nifti(values), "k"), 3), "auto", 3).shape == (3, 6, 5)


def test_the_fourth_axis_has_channels(values):
    four = np.stack([values, values + 1, values + 2, values + 3], -1)
    part = VolumeSlice(open_volume(nifti(four), "k"), 1)
    assert part.own_channels == 4
    image_CHW = read(part, (100.0, 400.0), 4)
    assert image_CHW.shape == (4, 6, 5)
    np.testing.assert_allclose(image_CHW[3] - image_CHW[0], 3 / 400 * 255, atol=1e-3)
    for channels in (1, 3, 5):
        with pytest.raises(ImageNeedsSetting, match=f"it has 4 bands, and dataset.channels={channels}"):
            read(part, (100.0, 400.0), channels)
    with pytest.raises(ImageNeedsSetting, match="it has 3 volumes, and dataset.channels=1"):
        read(VolumeSlice(open_volume(nifti(four[..., :3]), "k"), 1), (100.0, 400.0), 1)


def test_labels_are_whole_numbers():
    labels = np.zeros((3, 4, 2), np.float32)
    labels[1, 2, 1] = 300
    assert open_volume(nifti(labels), "k").labels(1)[2, 1] == 300
    for wrong, said in ((0.5, "no whole numbers"), (-1, "from -1 to 0"), (65536, "0 to 65535"), (np.nan, "finite")):
        labels[1, 2, 1] = wrong
        with pytest.raises(ValueError, match=said):
            open_volume(nifti(labels), "k").labels(1)
    with pytest.raises(ValueError, match="it has 2 volumes, and a mask has one"):
        open_volume(nifti(np.zeros((3, 4, 2, 2), np.uint8)), "k").labels(0)


def test_distance_of_volumes(values):
    moved = RAS.copy()
    moved[0, 3] = 2.5
    one, other = (open_volume(nifti(values, affine), "axial") for affine in (RAS, moved))
    assert distance_of_corners(one, other) == pytest.approx(2.5)
    mirrored = open_volume(nifti(values[::-1], np.diag([-1.0, 1, 1, 1]) + np.eye(4, k=3) * 4), "axial")
    assert distance_of_corners(one, mirrored) == 0  # stored from left to right, in the same place
    assert distance_of_corners(one, open_volume(nifti(values, None), "k")) == 0


@pytest.mark.parametrize(
    "content, said",
    [
        (b"", "does not begin with a header of NIfTI"),
        (b"x" * 400, "does not begin with a header of NIfTI"),
        (nifti(np.zeros((2, 2, 2), np.int16))[:300], "does not begin with a header of NIfTI"),
        (nifti(np.zeros((2, 2, 2), np.int16), second=True)[:500], "its header is cut off"),
        (nifti(np.zeros((2, 2, 2), np.int16), magic=b"ni1\0"), "its values are in another file"),
        (nifti(np.zeros((2, 2, 2), np.int16), code=128), "its values are RGB"),
        (nifti(np.zeros((2, 2, 2), np.int16), code=7), "of the unknown type 7"),
        (nifti(np.zeros((2, 2, 2), np.int16), dim=[3, 2, -2, 2, 1, 1, 1, 1]), "its sizes are"),
        (nifti(np.zeros((2, 2, 2), np.int16), dim=[9, 2, 2, 2, 1, 1, 1, 1]), "its sizes are"),
        (nifti(np.zeros((2, 2, 2), np.int16), dim=[0, 2, 2, 2, 1, 1, 1, 1]), "its sizes are"),
        (nifti(np.zeros((2, 2, 2), np.int16), dim=[5, 2, 2, 2, 2, 2, 1, 1]), "at most four are read"),
        (nifti(np.zeros((2, 2, 2), np.int16), offset=100), "begin at byte 100"),
        (nifti(np.zeros((2, 2, 2), np.int16), np.zeros((4, 4))), "is not invertible"),
        (nifti(np.zeros((2, 2, 2), np.int16), np.full((4, 4), np.nan), spacing=[1, 1, 1]), "is not invertible"),
    ],
)
def test_damaged_headers_are_refused(content, said):
    with pytest.raises(ValueError, match=said):
        open_volume(content, "axial")


def test_sizes_beyond_memory_are_refused_by_the_header():
    content = nifti(np.zeros((2, 2, 2), np.int16), dim=[3, 32000, 32000, 32000, 1, 1, 1, 1])
    with pytest.raises(ImageTooLarge, match="at most 4,294,967,296 are read"):
        read_header(content)
    flat = nifti(np.zeros((2, 2, 2), np.uint8), dim=[3, 20000, 20000, 1, 1, 1, 1, 1])
    with pytest.raises(ImageTooLarge, match="a slice has 20000 x 20000 pixels"):
        open_volume(flat, "k")
    with pytest.raises(ImageTooLarge, match="times as long as wide"):
        open_volume(nifti(np.zeros((2, 2, 2), np.uint8), np.diag([1e-8, 1.0, 1.0, 1.0]) * 10), "axial")


def test_truncated_values_are_refused(values):
    content = nifti(values)
    for cut in (content[:-1], gzip.compress(content)[:-30], gzip.compress(content[:-1])):
        with pytest.raises(ValueError, match="it is cut off: its values end at byte 772"):
            values_in(cut, read_header(content))
    with pytest.raises(ValueError, match="does not end behind its values"):
        values_in(gzip.compress(content)[:-8], read_header(content))  # without the checksum
    wrong = bytearray(gzip.compress(content, 0))
    wrong[500] ^= 1
    with pytest.raises(ValueError, match=r"its packed content is damaged \(gzip\)"):
        values_in(bytes(wrong), read_header(content))
    assert np.array_equal(values_in(gzip.compress(content + bytes(5000)), read_header(content))[..., 0], values)
    packed = bytearray(gzip.compress(content))
    packed[40:60] = bytes(20)
    with pytest.raises(ValueError, match="damaged|cut off"):
        values_in(bytes(packed), read_header(content))


def test_a_volume_is_no_image(values):
    for content in (nifti(values), gzip.compress(nifti(values))):
        with pytest.raises(ValueError, match=r"it is a volume \(NIfTI\), and an image is expected here"):
            ImageReader(content)


@pytest.mark.parametrize("second", [False, True])
@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("direction", ["axial", "coronal", "sagittal", "i", "j", "k"])
def test_label_volumes_lie_where_their_images_do(second, order, direction):
    """The labels of slices, put back, are those of the volume; nibabel reads the place of its image from them."""
    nibabel = pytest.importorskip("nibabel")
    label_XYZ = np.random.RandomState(2).randint(0, 9, SHAPE).astype(np.uint8)
    for affine_44 in oriented_affines():
        content = nifti(label_XYZ, affine_44, second=second, order=order)
        volume = open_volume(content, direction)
        found_XYZ = np.full(SHAPE, 99, np.uint16)
        for number in range(volume.num_slices):
            volume.put_slice(found_XYZ, number, volume.labels(number))
        for packed in (content, gzip.compress(content)):
            kind = nibabel.Nifti2Image if second else nibabel.Nifti1Image
            image, source = (kind.from_bytes(each) for each in (encode_labels(packed, found_XYZ), content))
            assert image.get_data_dtype().newbyteorder("=") == np.uint16
            assert np.array_equal(np.asarray(image.dataobj), label_XYZ)
            assert np.array_equal(image.affine, source.affine) and image.header.get_zooms() == source.header.get_zooms()
            assert image.header["sform_code"] == 1 and image.header.get_xyzt_units() == source.header.get_xyzt_units()
            assert image.header.endianness == order


def oriented_affines():
    """Axes in other orders and directions, with other spacings, turned a little."""
    turned_33 = np.array([[0.98, -0.17, 0.05], [0.17, 0.98, 0.0], [-0.05, 0.01, 0.99]])
    for order in itertools.permutations(range(3)):
        for signs in ((1, 1, 1), (-1, 1, -1), (-1, -1, 1)):
            affine_44 = np.eye(4)
            affine_44[:3, :3] = (turned_33 @ np.diag(signs))[:, order] * [1.0, 2.5, 1.5]
            affine_44[:3, 3] = 10, -20, 30
            yield affine_44


def test_label_volumes_keep_the_quaternion_and_the_unit():
    nibabel = pytest.importorskip("nibabel")
    image = nibabel.Nifti1Image(np.zeros((3, 4, 5), np.float32), None)
    image.set_qform(next(oriented_affines()), "scanner")
    image.header.set_xyzt_units("micron", "sec")
    image.header["descrip"] = b"Doe^Jane"
    content = encode_labels(image.to_bytes(), np.ones((3, 4, 5), np.uint8))
    found = nibabel.Nifti1Image.from_bytes(content)
    np.testing.assert_array_equal(found.affine, image.affine)
    assert found.header["qform_code"] == 1 and found.header["sform_code"] == 0 and b"Jane" not in content
    assert found.header.get_xyzt_units()[0] == "micron" and found.header.get_data_dtype() == np.uint8
