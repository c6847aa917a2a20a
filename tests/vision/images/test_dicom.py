"""DICOM files, and deep images in a window, against the formulas of the standard in NumPy."""

import io
import logging
import os
import sys
import tracemalloc
import warnings
import zlib

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pytest
from image_files import open_files
from PIL import Image

from mxtrain.errors import DataError, LoaderError
from mxtrain.vision.classification.image_folder import ImageFolder
from mxtrain.vision.images.decoding import DecodedSource
from mxtrain.vision.images.files import ImageFiles, find_files, find_images
from mxtrain.vision.images.pixels import ImageReader
from mxtrain.vision.images.settings import Decoding
from mxtrain.vision.images.signature import ImageSignature
from mxtrain.vision.segmentation.mask_pairs import list_images, list_masks, pair
from mxtrain.vision.segmentation.segmentation_folder import SegmentationFolder

pytest.importorskip("pydicom", reason="pydicom is not installed: pip install 'mxtrain[dicom]'")
import dicom_files
from dicom_files import SECRET, compressed, describe, dicom, encode, rle

HEIGHT, WIDTH = 12, 16
IMPLICIT, EXPLICIT, DEFLATED, BIG = (f"1.2.840.10008.1.2{end}" for end in ("", ".1", ".1.99", ".2"))
JPEG, EXTENDED, LOSSLESS, JPEG_LS = (f"1.2.840.10008.1.2.4.{end}" for end in (50, 51, 70, 80))
RLE = "1.2.840.10008.1.2.5"
JPEG2000, MPEG = (f"1.2.840.10008.1.2.4.{end}" for end in (90, 100))
LUMA = np.array([0.299, 0.587, 0.114])


def draw(kind="int16", low=None, high=None, shape=(HEIGHT, WIDTH), seed=3):
    info = np.iinfo(kind)
    low, high = (info.min if low is None else low), (info.max if high is None else high)
    return np.random.RandomState(seed).randint(low, high + 1, shape, np.int64).astype(kind)


def read(content, window="auto", channels=1):
    image = ImageReader(content, window)
    return image.resized((0, 0, *image.size), image.size, channels)


def ramp(value, low, high):
    """0 from `low` down, 255 from `high` up."""
    return np.clip((value.astype(np.float64) - low) / (high - low), 0, 1) * 255


@pytest.mark.parametrize("photometric", ["MONOCHROME1", "MONOCHROME2"])
@pytest.mark.parametrize("syntax", [IMPLICIT, EXPLICIT])
@pytest.mark.parametrize("slope, intercept", [("1", "-1024"), ("0.5", "3.25"), ("-2", "0"), (None, None)])
@pytest.mark.parametrize("kind, bits", [("uint8", 8), ("uint16", 12), ("int16", 12), ("int16", 16), ("uint32", 32)])
def test_values_are_rescaled_and_shown_as_chosen(kind, bits, slope, intercept, syntax, photometric):
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if kind[0] == "i" else (0, (1 << bits) - 1)
    stored = draw(kind, low, high)
    units = stored * float(slope or 1) + float(intercept or 0)
    bounds = sorted(bound * float(slope or 1) + float(intercept or 0) for bound in (low, high))
    options = {
        "BitsStored": bits,
        "PhotometricInterpretation": photometric,
        "RescaleSlope": slope,
        "RescaleIntercept": intercept,
    }
    plain = dicom(stored, syntax, **options)
    # The centre is the first of several, as the standard says; so is the width.
    own = dicom(stored, syntax, WindowCenter=["100", "-600"], WindowWidth=["300", "1500"], **options)
    exact = dicom(stored, syntax, WindowCenter="100", WindowWidth="300", VOILUTFunction="LINEAR_EXACT", **options)
    curve = dicom(stored, syntax, WindowCenter="100", WindowWidth="300", VOILUTFunction="SIGMOID", **options)
    with np.errstate(over="ignore"):
        sigmoid = 255 / (1 + np.exp(-4 * (units - 100) / 300))
    for content, window, expected in (
        (plain, "auto", ramp(units, *bounds)),
        (plain, "full", ramp(units, *bounds)),
        (own, "full", ramp(units, *bounds)),
        (own, "auto", ramp(units, 99.5 - 149.5, 99.5 + 149.5)),
        (exact, "auto", ramp(units, -50, 250)),
        (curve, "auto", sigmoid),
        (own, (40.0, 400.0), ramp(units, -160, 240)),
        (plain, (40.0, 400.0), ramp(units, -160, 240)),
    ):
        found = read(content, window)
        expected = 255 - expected if photometric == "MONOCHROME1" else expected
        assert found.dtype == np.float32 and np.abs(found[0] - expected).max() < 1e-4, window
    assert np.abs(read(own, channels=3) - read(own)).max() == 0


def test_unused_bits_are_ignored():
    """Old files keep overlays in them; and those that count need not be the lowest."""
    stored = draw("uint16", 0, 4095)
    noise = draw("uint16", 0, 15, seed=4)
    expected = read(dicom(stored, BitsStored=12))
    assert np.array_equal(read(dicom(stored | noise << 12, BitsStored=12)), expected)
    assert np.array_equal(read(dicom(stored << 4 | noise, BitsStored=12, HighBit=15)), expected)
    signed = draw("int16", -2048, 2047)
    padded = (signed.astype(np.uint16) & 4095) | noise << 12
    found = read(dicom(padded, BitsStored=12, PixelRepresentation=1), (0.0, 100.0))
    assert np.abs(found[0] - ramp(signed, -50, 50)).max() < 1e-4


def test_spaces_around_words_do_not_count():
    content = dicom(GREY, PhotometricInterpretation="MONOCHROME1 ", RescaleSlope=" 1")
    assert np.array_equal(read(content.replace(b"MONOCHROME1 ", b" MONOCHROME1")), read(content))


def test_an_empty_window_is_none():
    stored = draw("uint16")
    found = read(dicom(stored, WindowCenter="", WindowWidth=""))
    assert np.abs(found[0] - ramp(stored, 0, 65535)).max() < 1e-4


def to_ybr(rgb):
    """PS3.3 C.7.6.3.1.2."""
    matrix = np.array([[0.299, 0.587, 0.114], [-0.1687, -0.3313, 0.5], [0.5, -0.4187, -0.0813]])
    return np.clip(np.rint(rgb @ matrix.T + [0, 128, 128]), 0, 255).astype(np.uint8)


@pytest.mark.parametrize("kind", ["uint8", "uint16"])
def test_colours(kind):
    rgb = draw(kind, shape=(HEIGHT, WIDTH, 3))
    expected = rgb.transpose(2, 0, 1) * (255 / np.iinfo(kind).max)
    planes = np.ascontiguousarray(rgb.transpose(2, 0, 1)).tobytes()
    for content in (dicom(rgb), dicom(rgb, PlanarConfiguration=1, PixelData=planes), rle(rgb)):
        found = read(content, channels=3)
        assert found.dtype == ("uint8" if kind == "uint8" else "float32") and np.abs(found - expected).max() < 1e-4
        assert np.abs(read(content)[0] - LUMA @ expected.reshape(3, -1).reshape(3, HEIGHT, -1).swapaxes(0, 1)).max() < 1
    with pytest.raises(ValueError, match=r"in colour \(RGB\), and dataset.window=\[40.0, 400.0\] is for grey"):
        read(dicom(rgb), (40.0, 400.0))


def test_colours_as_luminance():
    smooth = np.indices((HEIGHT, WIDTH)).sum(0)[..., None] * 3 + np.array([30, 90, 150])
    rgb = np.repeat(smooth[:, ::2], 2, axis=1).astype(np.uint8)  # two pixels beside one another share their colour
    ybr = to_ybr(rgb)
    found = read(dicom(ybr, PhotometricInterpretation="YBR_FULL"), channels=3)
    assert np.abs(found - rgb.transpose(2, 0, 1).astype(int)).max() <= 2
    halved = np.stack([ybr[:, ::2, 0], ybr[:, 1::2, 0], ybr[:, ::2, 1], ybr[:, ::2, 2]], -1)
    for planar in (0, 1):  # it says nothing where samples share their colour
        elements = {"PhotometricInterpretation": "YBR_FULL_422", "PlanarConfiguration": planar}
        content = dicom(rgb, PixelData=halved.tobytes(), **elements)
        assert np.abs(read(content, channels=3) - rgb.transpose(2, 0, 1).astype(int)).max() <= 2


@pytest.mark.parametrize("kind", ["uint8", "int16", "uint16"])
def test_rle(kind):
    stored = draw(kind)
    stored[3:6] = stored[3, 0]  # runs
    assert np.array_equal(read(rle(stored)), read(dicom(stored)))


def test_rle_of_bytes_without_runs():
    stored = np.arange(16, dtype=np.uint8).reshape(4, 4)
    segment = b"".join(bytes([0, value]) for value in range(16))  # two bytes for each: the most that RLE takes
    stream = np.array([1, 64, *[0] * 14], "<u4").tobytes() + segment
    assert np.array_equal(read(compressed(stored, RLE, stream)), read(dicom(stored)))
    with pytest.raises(ValueError, match=r"its RLE Lossless .* stream is damaged, or the installed decoder does not"):
        read(compressed(stored, RLE, stream[:-4]))


def saved(image, kind, **options):
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def test_jpeg():
    y, x = np.mgrid[:48, :64]
    rgb = np.stack([x * 3, y * 4, (x + y) * 2], -1).astype(np.uint8)
    for syntax in (JPEG, EXTENDED):
        grey = compressed(rgb[..., 0], syntax, saved(Image.fromarray(rgb[..., 0]), "JPEG", quality=100))
        assert np.abs(read(grey)[0] - rgb[..., 0]).max() < 3
        window = (100.0, 100.0)
        assert np.abs(read(grey, window)[0] - ramp(rgb[..., 0], 50, 150)).max() < 3 * 2.55
    stream = saved(Image.fromarray(rgb), "JPEG", quality=100, subsampling=0)
    found = read(compressed(rgb, JPEG, stream, PhotometricInterpretation="YBR_FULL_422"), channels=3)
    assert np.abs(found - rgb.transpose(2, 0, 1).astype(int)).max() < 5
    # Red, green and blue that were not turned into luminance and colour, as the file says and the stream does not.
    stream = saved(Image.frombytes("YCbCr", (64, 48), rgb.tobytes()), "JPEG", quality=100, subsampling=0)
    found = read(compressed(rgb, JPEG, stream), channels=3)
    assert np.abs(found - rgb.transpose(2, 0, 1).astype(int)).max() < 5


@pytest.mark.parametrize("kind", ["uint8", "uint16", "int16"])
def test_jpeg_2000(kind):
    pytest.importorskip("PIL.features").check_codec("jpg_2000") or pytest.skip("Pillow was built without JPEG 2000")
    stored = draw(kind)
    unsigned = (stored.astype(np.int64) + (1 << 15) * (kind == "int16")).astype("u" + kind.lstrip("u"))
    stream = saved(Image.fromarray(unsigned), "JPEG2000", no_jp2=True, irreversible=False)
    if kind == "int16":  # Pillow reads and writes what is shifted upward; the stream's own mark says so
        stream = stream[:42] + bytes([stream[42] | 128]) + stream[43:]
    assert np.array_equal(read(compressed(stored, JPEG2000, stream)), read(dicom(stored)))
    rgb = draw("uint8", shape=(HEIGHT, WIDTH, 3))
    stream = saved(Image.fromarray(rgb), "JPEG2000", no_jp2=True, irreversible=False, mct=1)
    found = read(compressed(rgb, JPEG2000, stream, PhotometricInterpretation="YBR_RCT"), channels=3)
    assert np.array_equal(found, rgb.transpose(2, 0, 1))


def start_of_frame(width, height, samples=1, precision=16, marker=0xC3):
    """The beginning of a JPEG stream."""
    return (
        b"\xff\xd8\xff"
        + bytes([marker, 0, 17, precision])
        + bytes([height >> 8, height & 255, width >> 8, width & 255, samples])
        + bytes(9)
    )


@pytest.mark.parametrize("syntax, name", [(LOSSLESS, "JPEG Lossless"), (JPEG_LS, "JPEG-LS"), (EXTENDED, "Extended")])
def test_undecodable_files_have_a_size(syntax, name, monkeypatch):
    monkeypatch.setattr("mxtrain.vision.images.dicom_pixels._PLUGINS", ("no_such_plugin",))
    content = compressed(draw("uint16"), syntax, start_of_frame(WIDTH, HEIGHT, precision=12))
    image = ImageReader(content)
    assert image.size == (WIDTH, HEIGHT)
    said = rf"{name}.* \({syntax}\), for which no decoder is installed: pip install pylibjpeg"
    with pytest.raises(ValueError, match=said):
        image.resized((0, 0, 4, 4), (4, 4), 1)


def test_plugin_decodes_lossless_jpeg():
    pytest.importorskip("libjpeg", reason="pylibjpeg-libjpeg is not installed")
    with pytest.raises(ValueError, match="stream is damaged, or the installed decoder does not read it"):
        read(compressed(draw("uint16"), LOSSLESS, start_of_frame(WIDTH, HEIGHT)))


GREY = draw("uint16")
MULTI = {"NumberOfFrames": "3", "PixelData": GREY.tobytes() * 3}
REFUSED = {
    "frames": (lambda: dicom(GREY, **MULTI), "it has 3 frames, and one is expected here: write each frame to a file"),
    "palette": (lambda: dicom(GREY, PhotometricInterpretation="PALETTE COLOR"), "PALETTE COLOR in 1 samples"),
    "unknown kind": (lambda: dicom(GREY, PhotometricInterpretation="SMITH"), r"\(0028,0004\) holds a word that is not"),
    "no pixels": (lambda: dicom(GREY, PixelData=None), "holds no pixels"),
    "no rows": (lambda: dicom(GREY, Rows=None), "does not say its Rows: it holds no image"),
    "too few": (lambda: dicom(GREY, PixelData=bytes(100)), "cut off: 12 rows of 16 pixels take 384 bytes, not 100"),
    "too large": (lambda: dicom(GREY, Rows=65535, Columns=65535), "65535 x 65535 pixels, and at most 178,956,970"),
    "bits": (lambda: dicom(GREY, BitsAllocated=64), "have 64 bits"),
    "slope": (lambda: dicom(GREY, RescaleSlope="0"), "RescaleSlope is 0"),
    "width": (lambda: dicom(GREY, WindowCenter="4", WindowWidth="0"), "window is 0 wide.*type dataset.window=full"),
    "big endian": (lambda: dicom(GREY).replace(b"1.2.840.10008.1.2.1\0", b"1.2.840.10008.1.2.2\0"), "Big Endian .*is"),
    "video": (lambda: compressed(GREY, MPEG, bytes(80)), "MPEG2 .*is not read: convert it, e.g. gdcmconv"),
    "private syntax": (lambda: dicom(GREY).replace(b"1.2.840.10008.1.2.1\0", b"Doe^Jane Doe^Jane 1\0"), "is no UID"),
    "size": (lambda: compressed(GREY, LOSSLESS, start_of_frame(60000, 60000)), "16 x 12 .* 60000 x 60000 of 1: it"),
    "no stream": (lambda: compressed(GREY, JPEG, bytes(90)), "JPEG stream is damaged"),
    "no wavelets": (lambda: compressed(GREY, JPEG2000, bytes(90)), "no JPEG 2000 stream"),
    "table": (lambda: encode(_with_table()), r"a table \(Modality LUT\) says what its values mean"),
    "cut off": (lambda: dicom(GREY)[:-200], "cut off: its pixels take 384 bytes, and 184 follow"),
    "no data set": (lambda: dicom(GREY).partition(b"2.1\0")[0] + b"2.1\0", "ends before its data set"),
    "no number": (lambda: dicom(GREY, RescaleSlope="7.25").replace(b"7.25", b"Doe "), r"\(0028,1053\) holds no number"),
    "no type": (lambda: dicom(GREY, RescaleSlope="7.25").replace(b"DS\4\0007.25", b"QQ\4\0007.25"), "holds no number"),
    "floats": (lambda: dicom(GREY, PixelData=None, FloatPixelData=bytes(17 << 20)), "holds no pixels"),
    "half a header": (lambda: dicom(GREY)[:160], "ends before its data set"),
    "long header": (lambda: dicom(GREY, TextValue="x" * (17 << 20)), "header takes more than 16 MiB"),
}


def _with_table():
    from pydicom.sequence import Sequence

    dataset = describe(GREY)
    dataset.ModalityLUTSequence = Sequence([describe(GREY)])
    return dataset


@pytest.mark.filterwarnings("ignore:.*:UserWarning:pydicom")  # of what is written
@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case, tmp_path, caplog, capfd):
    make, said = REFUSED[case]
    (tmp_path / "a.dcm").write_bytes(make())
    caplog.clear()
    capfd.readouterr()
    with pytest.raises(LoaderError, match=f"a.dcm' cannot be read as an image .*{said}") as caught:
        open_files([tmp_path / "a.dcm"], Decoding((1, 8, 8))).fetch(np.arange(1), seed=0, epoch=0, train=False)
    assert SECRET not in f"{caught.value}{caplog.text}{capfd.readouterr()}"


@pytest.mark.slow
def test_small_files_take_little_memory():
    """Packed bytes that would become 8 GiB, and a run of RLE that goes on for ever."""
    meta, body = dicom(GREY)[:132], zlib.compressobj(9, zlib.DEFLATED, -15)
    packed = b"".join(body.compress(bytes(1 << 20)) for _ in range(64)) + body.flush()
    uid = DEFLATED.encode() + b"\0" * (len(DEFLATED) % 2)
    deflated = meta + b"\x02\0\x10\0UI" + len(uid).to_bytes(2, "little") + uid + packed
    with pytest.raises(ValueError, match="Deflated Explicit VR Little Endian .*is not read"):
        ImageReader(deflated)
    segment = b"\x81\x00" * 100_000
    stream = np.array([1, 64, *[0] * 14], "<u4").tobytes() + segment
    content = compressed(draw("uint8"), RLE, stream)
    tracemalloc.start()
    with pytest.raises(ValueError, match="its RLE stream has 200,064 bytes for 192 of pixels: it is damaged"):
        read(content)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1 << 20


def test_warnings_of_pydicom_are_suppressed(capfd, caplog):
    """It repeats what the file says of its characters, and finds elements in another form than it was told."""
    content = dicom(GREY, IMPLICIT).replace(b"UI\x12\x001.2.840.10008.1.2\0", b"UI\x14\x001.2.840.10008.1.2.1\0")
    assert b"1.2.1\0" in content
    charset = dicom(GREY, SpecificCharacterSet="ISO_IR 100").replace(b"ISO_IR 100", SECRET.encode() + b"  ")
    capfd.readouterr()
    caplog.clear()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert np.array_equal(read(content), read(dicom(GREY))) and np.array_equal(read(charset), read(content))
    assert not [str(warning.message) for warning in caught] and not caplog.text and capfd.readouterr() == ("", "")


def test_patient_names_are_in_no_message(tmp_path, capfd, caplog):
    """Holds for damage at any byte, also if pydicom warns."""
    caplog.set_level(logging.DEBUG)
    content = dicom(GREY, RescaleSlope="1", WindowCenter="40", WindowWidth="400", VOILUTFunction="SIGMOID")
    said = []
    for found in range(132, len(content) - GREY.nbytes - 12, 3):
        spoiled = content[:found] + SECRET.encode() + content[found + len(SECRET) :]
        try:
            read(spoiled)
        except ValueError as error:
            said.append(str(error))
            assert error.__cause__ is None or SECRET not in str(error.__cause__)
    printed = capfd.readouterr()
    assert len(set(said)) > 4 and SECRET not in "".join(said) + caplog.text + printed.out + printed.err
    assert "Jane" not in "".join(said)


def test_damaged_files_raise_only_refusals():
    """500 files of every kind with bytes changed or cut off."""
    rng = np.random.RandomState(1)
    y, x = np.mgrid[:HEIGHT, :WIDTH]
    smooth = (x + y).astype(np.uint8)
    nested = describe(draw())
    nested.ReferencedImageSequence = [describe(draw(shape=(2, 2)))]
    nested["ReferencedImageSequence"].is_undefined_length = True
    whole = [
        dicom(draw(), RescaleSlope="1", RescaleIntercept="-1024", WindowCenter="40", WindowWidth="400"),
        dicom(draw("uint8", shape=(HEIGHT, WIDTH, 3)), IMPLICIT),
        rle(draw()),
        encode(nested),
        compressed(smooth, JPEG, saved(Image.fromarray(smooth), "JPEG")),
        compressed(smooth, JPEG2000, saved(Image.fromarray(smooth), "JPEG2000", no_jp2=True)),
    ]
    refused = 0
    for number in range(500):
        content = bytearray(whole[number % len(whole)])
        for place in rng.randint(0, len(content), rng.randint(1, 9)):
            # Half of them in the header of the image, where bytes mean something.
            content[place if place % 2 else 128 + place % min(700, len(content) - 128)] = rng.randint(256)
        content = content[: rng.randint(100, len(content))] if number % 3 == 0 else content
        if b"DICM" not in content[128:132]:
            continue
        files = Encoded(bytes(content))
        try:
            DecodedSource(files, Decoding((1, 8, 8))).fetch(np.arange(1), seed=0, epoch=0, train=False)
        except LoaderError as error:
            assert "cannot be read as an image (" in str(error) and "Traceback" not in str(error)
            refused += 1
    assert 150 < refused < 490


class Encoded:
    """One file in memory, as `EncodedImages`."""

    def __init__(self, content):
        self.content = content

    def name(self, index):
        return "'a.dcm'"

    def read(self, index):
        return self.content, 0


def test_files_are_found_by_their_first_bytes(tmp_path):
    content = dicom(GREY)
    for name in ("a.dcm", "b.DICOM", "IM0001", "1.2.840.113619.2", "DICOMDIR", ".hidden", "c.txt"):
        (tmp_path / name).write_bytes(content)
    for name in ("README", "2.5"):
        (tmp_path / name).write_text("no image " * 30)
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "deep").symlink_to("IM0001")  # the same file
    found = [path.name for path, _ in find_images(tmp_path)]
    assert found == ["1.2.840.113619.2", "IM0001", "a.dcm", "b.DICOM"]
    source = open_files([tmp_path / "c.txt"], Decoding((1, 8, 8)))  # a file that is named is read whatever its name
    assert source.fetch(np.arange(1), seed=0, epoch=0, train=False)[0].dtype == np.float32


def test_masks_belong_to_images_without_an_ending(tmp_path):
    for folder in ("images", "masks"):
        (tmp_path / folder).mkdir()
    for name in ("IM0001", "1.2.840.113619.2", "a.dcm"):
        (tmp_path / "images" / name).write_bytes(dicom(GREY))
        Image.fromarray(draw("uint8", 0, 1)).save(tmp_path / "masks" / f"{name.replace('.dcm', '')}.png")
    pairs = pair(list_images(tmp_path / "images"), list_masks(tmp_path / "masks"), tmp_path / "masks")
    named = [(os.path.basename(a), os.path.basename(b)) for a, b in zip(pairs.images, pairs.masks)]
    assert named == [("1.2.840.113619.2", "1.2.840.113619.2.png"), ("IM0001", "IM0001.png"), ("a.dcm", "a.png")]


@pytest.mark.parametrize("name", ["a.dcm", "IM0001"])
def test_missing_pydicom_is_reported_before_the_start(name, tmp_path, monkeypatch):
    content = dicom(GREY)
    for label in ("ill", "well"):
        (tmp_path / label).mkdir()
        (tmp_path / label / name).write_bytes(content)
    monkeypatch.setitem(sys.modules, "pydicom", None)
    monkeypatch.setitem(sys.modules, "pydicom.filereader", None)
    remedy = r"installed(, which reads it)?. Type: .*python.* -m pip install 'pydicom>=2.4.4,<4' numpy==1.23.5"
    said = rf"{name}' is a DICOM file, and pydicom is not {remedy}\."
    with pytest.raises(DataError, match=said):
        ImageFolder(root=str(tmp_path)).open()
    with pytest.raises(DataError, match=said):
        find_files([tmp_path / "ill"])
    with pytest.raises(ValueError, match=rf"pydicom, which reads it, is not {remedy}"):
        ImageReader(content)


def test_grey_in_a_window_is_measured(tmp_path):
    root = dicom_files.write_folder(tmp_path / "ct")
    settings = {"root": str(root), "channels": 1, "image_size": [24, 32], "central_crop": 1.0}
    for window in ("auto", [40, 400]):
        splits = ImageFolder(window=window, **settings).open()
        seen = np.concatenate(
            [splits.train.fetch(np.array([i]), seed=0, epoch=0, train=False)[0] for i in range(len(splits.train))]
        )
        assert splits.mean == [pytest.approx(seen.mean() / 255, abs=1e-4)]
        assert splits.std == [pytest.approx(seen.std() / 255, abs=1e-4)]
    assert ImageFolder(mean=[0.3], **settings).open().mean == [0.3]
    # A command that evaluates a checkpoint measures nothing anew.
    decoding = Decoding((1, 24, 32), window=(1.0, 2.0))
    given = ImageSignature((1, 24, 32), [0.1], [0.2], ["ill", "well"], decoding=decoding)
    restored, _ = ImageFolder(**settings).restored(given, (), "run")
    assert (restored.mean, restored.std, restored.window) == ([0.1], [0.2], [1.0, 2.0])
    restored, signature = ImageFolder(window="full", **settings).restored(given, ("dataset.window",), "run")
    assert (restored.window, signature.decoding.window) == ("full", "full")
    assert len(ImageFolder(**{**settings, "channels": 3}).open().mean) == 3
    # What an earlier version trained on goes on with the bits that it had.
    for path in [*root.rglob("*.dcm")]:
        Image.fromarray(draw("uint16")).save(path.with_suffix(".png"))
        path.unlink()
    assert ImageFolder(**settings).open().mean == [pytest.approx(0.449, abs=1e-3)]
    (root / "ill/0.png").write_bytes(b"no image")
    with pytest.raises(DataError, match="ill/0.png' cannot be read as an image"):
        ImageFolder(window=[40, 400], **settings).open()


def test_segmentation_statistics_exclude_padding(tmp_path):
    for folder in ("images", "masks"):
        (tmp_path / folder).mkdir()
    shown = []
    for number in range(4):
        stored = draw("uint16", 0, 2000, seed=number)
        shown.append(ramp(stored, 500, 1500))
        (tmp_path / f"images/{number}.dcm").write_bytes(dicom(stored))
        Image.fromarray(draw("uint8", 0, 1)).save(tmp_path / f"masks/{number}.png")
    settings = {"root": str(tmp_path), "classes": ["no", "yes"], "channels": 1, "image_size": 32, "val_fraction": 0.25}
    splits = SegmentationFolder(window=[1000, 1000], **settings).open()
    trained_on = [shown[index] for index in splits.train.index_N]  # and not what is held out
    assert len(trained_on) == 3 and splits.mean == [pytest.approx(np.mean(trained_on) / 255, abs=6e-5)]
    image, mask, _ = splits.val.fetch(np.arange(1), seed=0, epoch=0, train=False)
    found = [np.abs(image[0, 0, :HEIGHT, :WIDTH] - one).max() for one in shown]
    assert min(found) < 1e-3 and (mask[0, :HEIGHT, :WIDTH] >= 0).all()
    assert abs(image[0, 0, HEIGHT:].mean() - 255 * splits.mean[0]) <= 0.5


def test_threads_read_the_same_pixels(tmp_path):
    from concurrent.futures import ThreadPoolExecutor

    root = dicom_files.write_folder(tmp_path / "ct")
    source = DecodedSource(ImageFiles([path for path, _ in find_images(root)]), Decoding((1, 24, 32)))
    with warnings.catch_warnings(), ThreadPoolExecutor(4) as pool:
        fetch = lambda index: source.fetch(np.array([index]), seed=0, epoch=0, train=False)[0]  # noqa: E731
        for index, image in enumerate(pool.map(fetch, range(12))):
            assert np.array_equal(image, fetch(index))


@pytest.mark.parametrize("normal", [1, -1])
def test_slices_of_a_folder_are_sorted_by_their_position(tmp_path, normal):
    """The names have another order; along the normal of the plane, which is the cross product of rows and columns."""
    plane = [1, 0, 0, 0, normal, 0]
    heights = {"a": 3.0, "b": -10.5, "c": 100.0, "d": 20.0}
    for name, height in heights.items():
        content = dicom(
            np.zeros((4, 4), np.uint16), ImageOrientationPatient=plane, ImagePositionPatient=[5.0, 5.0, height]
        )
        (tmp_path / f"{name}.dcm").write_bytes(content)
    order = sorted(heights, key=lambda name: normal * heights[name])
    assert [path.stem for path in find_files([tmp_path])] == order
    (tmp_path / "bb").mkdir()  # by name, it lies between the files
    (tmp_path / "bb/x.dcm").write_bytes(content)
    assert [path.stem for path in find_files([tmp_path]) if path.stem != "x"] == order
    (tmp_path / "bb/x.dcm").unlink()
    (tmp_path / "e.dcm").write_bytes(dicom(np.zeros((4, 4), np.uint16)))  # without a position: by name
    assert [path.stem for path in find_files([tmp_path])] == list("abcde")
    (tmp_path / "e.dcm").write_bytes(b"damaged")
    assert [path.stem for path in find_files([tmp_path])] == list("abcde")
