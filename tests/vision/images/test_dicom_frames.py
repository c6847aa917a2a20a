"""DICOM files with several frames, written by pydicom: order, values and windows of frames, splits, predictions."""

import io
import os
import struct

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pytest
from PIL import Image

from mxtrain.data.checking.problems import DataLocation
from mxtrain.data.loading.dataset_files import read_bytes
from mxtrain.errors import DataError, LoaderError
from mxtrain.vision import exported_images
from mxtrain.vision.classification.image_folder import ImageFolder
from mxtrain.vision.images import dicom as dicom_module
from mxtrain.vision.images import volume_files
from mxtrain.vision.images.dicom import DicomFile, has_frames
from mxtrain.vision.images.dicom_pixels import PixelLayout, find_frames, require_frames
from mxtrain.vision.images.dicom_volume import DicomVolume, open_frames
from mxtrain.vision.images.files import ImageFiles
from mxtrain.vision.images.pixels import ImageReader
from mxtrain.vision.images.volume_files import SlicedFiles, has_slices, sliced
from mxtrain.vision.images.volume_slice import VolumeSlice

pytest.importorskip("pydicom", reason="pydicom is not installed: pip install 'mxtrain[dicom]'")
from dicom_files import SECRET, describe_frames, dicom, encode, enhanced, functional_group
from pydicom import dcmread
from pydicom.encaps import encapsulate

pytestmark = pytest.mark.filterwarnings("ignore:.*:UserWarning:pydicom")  # of what is written
AXIAL = [1, 0, 0, 0, 1, 0]
FRAMES = np.random.RandomState(0).randint(0, 4096, (5, 12, 16)).astype(np.uint16)
HEIGHTS = [40.0, 10.0, 30.0, 0.0, 20.0]
"""Place of each frame along the axis of the body, in millimetres."""


def ct(**elements):
    """An enhanced CT whose frames are not in the order of their places, and have slopes and windows of their own."""
    groups = [
        functional_group(
            RescaleIntercept="-1024",
            RescaleSlope=str(1 + number),
            WindowCenter="100",
            WindowWidth=str(400 + 100 * number),
            ImagePositionPatient=[-8.0, -6.0, height],
        )
        for number, height in enumerate(HEIGHTS)
    ]
    return enhanced(FRAMES, groups, functional_group(ImageOrientationPatient=AXIAL), BitsStored=12, **elements)


def read(part, window="auto", channels=1):
    image = ImageReader(part, window)
    return image.resized((0, 0, *image.size), image.size, channels)


def slices(content):
    volume = open_frames(content)
    return [VolumeSlice(volume, number) for number in range(volume.num_slices)]


def linear(value, centre, width):
    """PS3.3 C.11.2.1.2."""
    return np.clip((value - (centre - 0.5)) / (width - 1) + 0.5, 0, 1) * 255


def test_frames_of_an_enhanced_object_are_slices_in_the_order_of_their_places():
    content = encode(ct())
    stored = dcmread(io.BytesIO(content)).pixel_array
    parts = slices(content)
    assert [part.size for part in parts] == [(16, 12)] * 5
    for part, frame in zip(parts, np.argsort(HEIGHTS)):
        value = stored[frame] * (1.0 + frame) - 1024
        np.testing.assert_allclose(read(part)[0], linear(value, 100, 400 + 100 * frame), atol=1e-3)
        np.testing.assert_allclose(read(part, (40.0, 800.0))[0], np.clip((value + 360) / 800, 0, 1) * 255, atol=1e-3)
        # One range and one pair of percentiles for all frames, so that a tissue is as bright in each.
        np.testing.assert_allclose(read(part, "full")[0], (value + 1024) / (5 * 4095) * 255, atol=1e-3)
        low, high = np.percentile(stored * (1.0 + np.arange(5))[:, None, None] - 1024, [0.5, 99.5])
        shown = np.clip((value - low) / (high - low), 0, 1) * 255
        np.testing.assert_allclose(read(part, "percentile")[0], shown, atol=1e-3)


def test_frames_without_places_have_the_order_of_the_file():
    """Ultrasound: frames in colour; RescaleSlope and the window are those of the file."""
    colour = np.random.RandomState(1).randint(0, 256, (4, 6, 8, 3)).astype(np.uint8)
    for part, frame in zip(slices(encode(describe_frames(colour))), colour):
        assert np.array_equal(read(part, channels=3), frame.transpose(2, 0, 1)) and part.own_channels == 3
    elements = {"RescaleSlope": "2", "RescaleIntercept": "-9", "WindowCenter": "900", "WindowWidth": "1000"}
    for part, frame in zip(slices(encode(describe_frames(FRAMES, **elements))), FRAMES):
        np.testing.assert_allclose(read(part)[0], linear(frame * 2.0 - 9, 900, 1000), atol=1e-3)
    with pytest.raises(ValueError, match="it is in colour"):
        read(slices(encode(describe_frames(colour)))[0], (40.0, 400.0))


@pytest.mark.parametrize(
    "positions, planes, expected",
    [
        ([[0, 0, 2], [0, 0, 1], [0, 0, 0]], [AXIAL] * 3, [2, 1, 0]),
        ([[2, 0, 0], [1, 0, 0], [0, 0, 0]], [[0, 1, 0, 0, 0, -1]] * 3, [0, 1, 2]),  # sagittal, the normal to the left
        ([[0, 0, 1], [0, 0, 0], [0, 0, 1]], [AXIAL] * 3, [1, 0, 2]),  # two times of one place
        ([[0, 0, 2], [0, 0, 1], None], [AXIAL] * 3, [0, 1, 2]),
        ([[0, 0, 2], [0, 0, 1], [0, 0, 0]], [AXIAL, AXIAL, [0, 1, 0, 0, 0, -1]], [0, 1, 2]),
        ([[0, 0, 2], [0, 0, 1], [0, 0, 0]], [AXIAL, AXIAL, None], [0, 1, 2]),
    ],
)
def test_order_of_frames(positions, planes, expected):
    groups = []
    for position, plane in zip(positions, planes):
        elements = {"ImagePositionPatient": position, "ImageOrientationPatient": plane}
        groups.append(functional_group(**{name: value for name, value in elements.items() if value is not None}))
    parts = slices(encode(enhanced(FRAMES[:3], groups)))
    found = [int(np.abs(read(part, "full")[0] - FRAMES[:3] * (255 / 65535)).max((1, 2)).argmin()) for part in parts]
    assert found == expected
    assert (parts[0].volume.position_F3 is None) == (
        expected == [0, 1, 2] and planes[2] != planes[0] or None in positions
    )


def jpeg(frame):
    file = io.BytesIO()
    Image.fromarray(frame).save(file, "JPEG", quality=95)
    return file.getvalue()


GREY = np.add.outer(np.arange(24, dtype=np.uint8), np.arange(32, dtype=np.uint8) * 7)
STREAM = jpeg(GREY) + bytes(-len(jpeg(GREY)) % 4)
FRAGMENT = len(STREAM) // 2
"""Number of bytes of each of two fragments of a frame."""


def fragmented(table, num_frames=3):
    """A file of frames in two fragments each, with these bytes as its table of offsets."""
    fragments = [STREAM[:FRAGMENT], STREAM[FRAGMENT:]] * num_frames
    items = [b"\xfe\xff\x00\xe0" + struct.pack("<I", len(item)) + item for item in (table, *fragments)]
    grey = np.stack([GREY] * 3)
    return encode(describe_frames(grey, "1.2.840.10008.1.2.4.50", PixelData=b"".join(items)))


@pytest.mark.parametrize("has_table", [True, False])
@pytest.mark.parametrize("fragments", [1, 2, 3])
def test_compressed_frames(fragments, has_table):
    """JPEG frames in one fragment each, or in several that the offset table divides."""
    grey = np.stack([np.full((24, 32), value, np.uint8) for value in (10, 90, 200)])
    grey[:, :, ::5] += 30
    data = encapsulate([jpeg(frame) for frame in grey], fragments_per_frame=fragments, has_bot=has_table)
    parts = slices(encode(describe_frames(grey, "1.2.840.10008.1.2.4.50", PixelData=data)))
    if fragments > 1 and not has_table:
        with pytest.raises(
            ValueError, match=f"its 3 frames lie in {3 * fragments} fragments, and no valid offset table"
        ):
            read(parts[0])
        return
    for part, frame in zip(parts, grey):
        assert np.array_equal(read(part)[0], np.asarray(Image.open(io.BytesIO(jpeg(frame)))))


def test_fragments_are_found_once(monkeypatch):
    """For all frames: two thousand frames of two fragments took minutes."""
    calls = []

    def find(*arguments):
        calls.append(arguments)
        return find_frames(*arguments)

    monkeypatch.setattr(dicom_module, "find_frames", find)
    for part in slices(fragmented(struct.pack("<3I", *(number * (8 + FRAGMENT) for number in (0, 2, 4))))):
        read(part, "percentile")
    assert len(calls) == 1


def test_frames_of_run_lengths():
    dataset = describe_frames(FRAMES)
    dataset.SOPClassUID, dataset.SOPInstanceUID = "1.2.840.10008.5.1.4.1.1.2", "1.2.3"
    dataset.compress("1.2.840.10008.1.2.5")
    for part, frame in zip(slices(encode(dataset)), FRAMES):
        np.testing.assert_allclose(read(part)[0], frame * (255 / 65535), atol=1e-3)


def test_a_frame_may_lie_in_several_fragments_without_a_table():
    data = encapsulate([STREAM], fragments_per_frame=3, has_bot=False)
    image = read(encode(describe_frames(GREY[None], "1.2.840.10008.1.2.4.50", PixelData=data)))
    assert np.array_equal(image[0], np.asarray(Image.open(io.BytesIO(STREAM))))


@pytest.mark.parametrize(
    "order",
    [
        (0, None, 4),  # the second frame begins within a fragment
        (1, 2, 4),  # the first fragment belongs to no frame
        (0, 4, 2),
        (0, 2, 2),
        (0, 2),
    ],
)
def test_tables_of_offsets_must_fit(order):
    offsets = [9 if number is None else number * (8 + FRAGMENT) for number in order]
    parts = slices(fragmented(struct.pack(f"<{len(order)}I", *offsets)))
    with pytest.raises(ValueError, match="its 3 frames lie in 6 fragments, and no valid offset table says which"):
        read(parts[0])


def test_what_follows_the_offsets_in_a_table_is_left_out():
    table = struct.pack("<3I", *(number * (8 + FRAGMENT) for number in (0, 2, 4))) + bytes(2)
    for part in slices(fragmented(table)):
        assert np.array_equal(read(part)[0], np.asarray(Image.open(io.BytesIO(STREAM))))


def test_a_table_without_fragments_is_cut_off():
    with pytest.raises(ValueError, match="it is cut off: its compressed pixels do not end"):
        read(slices(fragmented(struct.pack("<3I", 0, 8, 16), num_frames=0))[0])


def test_each_compressed_frame_takes_at_least_eight_bytes():
    layout = PixelLayout(2, 2, 1, 8, 8, 7, False, "MONOCHROME2", False, "1.2.840.10008.1.2.4.50")
    require_frames((100, -1), layout, 3, 124)
    with pytest.raises(ValueError, match="it is cut off: 23 bytes cannot hold 3 frames"):
        require_frames((100, -1), layout, 3, 123)


def test_one_frame_is_an_image():
    """Also of an enhanced object, whose functional groups say what its values mean."""
    group = functional_group(RescaleSlope="2", RescaleIntercept="-100", WindowCenter="50", WindowWidth="400")
    content = encode(enhanced(FRAMES[:1], [group]))
    assert open_frames(content) is None
    np.testing.assert_allclose(read(content)[0], linear(FRAMES[0] * 2.0 - 100, 50, 400), atol=1e-3)
    shared = encode(enhanced(FRAMES[:1], [functional_group()], group))
    assert np.array_equal(read(shared), read(content))


def test_elements_before_the_number_of_frames_may_be_long():
    content = encode(ct(ImageComments="x" * (1 << 17)))
    assert open_frames(content).num_slices == 5


DAMAGED = {
    "cut": (lambda: encode(ct())[:-400], "it is cut off: its pixels take 1,920 bytes, and 1,520 follow"),
    "few": (lambda: encode(ct(NumberOfFrames="6")), "it has 6 frames, and functional groups of 5: it is damaged"),
    "short": (
        lambda: encode(describe_frames(FRAMES, NumberOfFrames="6")),
        "it is cut off: 6 frames of 12 rows of 16 pixels take 2,304 bytes, not 1,920",
    ),
    "many": (lambda: encode(describe_frames(FRAMES, NumberOfFrames="100001")), "its NumberOfFrames is 100001, and 1"),
    "compressed": (
        lambda: encode(
            describe_frames(FRAMES, "1.2.840.10008.1.2.4.50", NumberOfFrames="90000", PixelData=encapsulate([b"1234"]))
        ),
        "it is cut off: .* bytes cannot hold 90,000 frames",
    ),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_damaged_files_are_named_before_the_work(case, tmp_path, capfd):
    make, said = DAMAGED[case]
    (tmp_path / "a.dcm").write_bytes(make())
    files = ImageFiles([tmp_path / "a.dcm"])
    with pytest.raises(DataError, match=rf"a.dcm' cannot be read as a volume \({said}") as caught:
        sliced(files, "axial")
    lenient = sliced(files, "axial", is_strict=False)
    assert len(lenient) == 1
    with pytest.raises(LoaderError, match=said):
        lenient.read(0)
    assert SECRET not in f"{caught.value}{capfd.readouterr()}"


@pytest.mark.parametrize("vr, count, said", [("IS", "0", "0"), ("DS", "2.5", "2.5")])
def test_numbers_of_frames_are_whole(vr, count, said):
    dataset = describe_frames(FRAMES)
    dataset.add_new(0x00280008, vr, count)
    content = encode(dataset)
    with pytest.raises(ValueError, match=rf"its NumberOfFrames is {said}, and 1 to 100,000 frames are read"):
        DicomFile(content, len(content))


def test_damaged_headers_have_no_frames():
    content = encode(ct())
    assert not any(has_frames(io.BytesIO(content[:length])) for length in range(0, 300, 13))


@pytest.mark.parametrize("syntax, length", [("1.2.840.10008.1.2.1", -1), ("1.2.840.10008.1.2.4.50", 4)])
def test_pixels_lie_as_their_transfer_syntax_says(syntax, length):
    layout = PixelLayout(2, 2, 1, 8, 8, 7, False, "MONOCHROME2", False, syntax)
    with pytest.raises(ValueError, match=rf"its transfer syntax is .*{syntax}\)?, and its pixels lie otherwise"):
        require_frames((100, length), layout, 1, 200)


def test_places_that_are_not_finite_give_no_order():
    places = ([0, 0, "1e999"], [0, 0, 1], [0, 0, 0])
    groups = [functional_group(ImagePositionPatient=place, ImageOrientationPatient=AXIAL) for place in places]
    volume = open_frames(encode(enhanced(FRAMES[:3], groups)))
    assert volume.position_F3 is None
    assert np.array_equal(read(VolumeSlice(volume, 0), "full"), read(dicom(FRAMES[0]), "full"))


@pytest.mark.parametrize("tilt, is_parallel", [(9e-4, True), (1.1e-3, False)])
def test_frames_have_places_if_they_are_parallel(tilt, is_parallel):
    planes = (AXIAL, [1, 0, tilt, 0, 1, 0])
    groups = [
        functional_group(ImagePositionPatient=[0, 0, place], ImageOrientationPatient=plane)
        for place, plane in enumerate(planes)
    ]
    volume = open_frames(encode(enhanced(FRAMES[:2], groups)))
    assert (volume.position_F3 is not None) is is_parallel


def test_percentiles_of_large_files_are_those_of_all_columns(monkeypatch):
    """Every eighth value would be one of two columns."""
    monkeypatch.setattr(dicom_module, "_PERCENTILE_VALUES", 137)
    frames = np.full((5, 12, 16), 2000, np.uint16)
    frames[:, :, ::8] = 0
    for part, frame in zip(slices(encode(describe_frames(frames))), frames):
        np.testing.assert_allclose(read(part, "percentile")[0], frame * (255 / 2000), atol=1e-3)


def test_headers_of_too_many_items_are_refused():
    content = encode(ct(TextValue="\x00" * 8 * 100_001)).replace(b"\x00" * 8, b"\xfe\xff\x00\xe0\x00\x00\x00\x00")
    with pytest.raises(ValueError, match="its header has more than 100,000 items"):
        DicomFile(content, len(content))


def test_several_frames_are_no_image():
    with pytest.raises(ValueError, match="it has 5 frames, and one is expected here: write each frame"):
        ImageReader(encode(ct()))


def test_frames_are_samples_and_stay_together(tmp_path):
    for name in ("ill", "well"):
        (tmp_path / name).mkdir()
        for number in range(3):
            (tmp_path / name / f"{number}.dcm").write_bytes(encode(ct()))
        (tmp_path / name / "slice.dcm").write_bytes(dicom(FRAMES[number]))
    dataset = ImageFolder(root=str(tmp_path), channels=1, image_size=8, window="percentile", val_fraction=0.3)
    splits = dataset.open()
    assert (len(splits.train), len(splits.val)) == (22, 10)
    files = [{part.source.location(int(index)).file for index in part.index_N} for part in (splits.train, splits.val)]
    assert not files[0] & files[1] and len(files[0] | files[1]) == 8
    image_BCHW, label_B = splits.val.fetch(np.arange(10), seed=0, epoch=0, train=False)
    assert image_BCHW.shape == (10, 1, 8, 8) and label_B.tolist() == [0] * 5 + [1] * 5
    assert not splits.val.checks().check(0).problems


def test_names_and_places_of_frames(tmp_path):
    path = tmp_path / "a.dcm"
    path.write_bytes(encode(ct()))
    encoded = sliced(ImageFiles([path, tmp_path / "b.png"]), "coronal")
    assert isinstance(encoded, SlicedFiles) and isinstance(encoded.volume(4), DicomVolume) and len(encoded) == 6
    assert encoded.paths == [*(f"{path}:{number}" for number in range(5)), str(tmp_path / "b.png")]
    assert encoded.location(3) == DataLocation(str(path), record=3) and encoded.name(1) == f"slice 1 of '{path}'"
    assert encoded.volume(0).identity() == encoded.volume(1).identity() != open_frames(encode(ct(Rows=6))).identity()


def test_only_names_of_medical_files_are_looked_into(tmp_path):
    for name in ("a.dcm", "IM0001", "a.png"):
        (tmp_path / name).write_bytes(encode(ct()))
    found = [has_slices(str(tmp_path / name)) for name in ("a.dcm", "IM0001", "a.png", "none.dcm")]
    assert found == [True, True, False, False]


def test_a_file_is_read_once_for_all_of_its_frames(tmp_path, monkeypatch):
    (tmp_path / "a.dcm").write_bytes(encode(ct()))
    read_files = []

    def read_file(path, limit):
        read_files.append(path)
        return read_bytes(path, limit)

    monkeypatch.setattr(volume_files, "read_bytes", read_file)
    encoded = sliced(ImageFiles([tmp_path / "a.dcm"]), "axial")
    for number, own in enumerate(slices(encode(ct()))):
        assert np.array_equal(read(encoded.read(number)[0]), read(own))
    assert read_files == [str(tmp_path / "a.dcm")]


def test_exported_folders_read_frames():
    signature = {"signature": {"decoding": {"shape": [1, 8, 8]}}}
    parts = list(exported_images.parts_of(encode(ct()), "a.dcm", signature))
    assert [name for name, _ in parts] == [f"a.dcm:{number}" for number in range(5)]
    for (_, part), own in zip(parts, slices(encode(ct()))):
        assert np.array_equal(read(part), read(own))
    with pytest.raises(ValueError, match=r"a.dcm cannot be read as a volume \(it is cut off"):
        list(exported_images.parts_of(encode(ct())[:-10], "a.dcm", signature))


def test_the_full_range_is_that_of_all_frames():
    """Slopes of other signs: black is the smallest possible value of all frames, white the largest."""
    slopes = (-2.0, 1.0, 3.0)
    groups = [functional_group(RescaleSlope=str(slope), RescaleIntercept="7") for slope in slopes]
    parts = slices(encode(enhanced(FRAMES[:3], groups, BitsStored=12)))
    for part, frame, slope in zip(parts, FRAMES, slopes):
        expected = (frame * slope + 2 * 4095) / (5 * 4095) * 255
        np.testing.assert_allclose(read(part, "full")[0], expected, atol=1e-3)
