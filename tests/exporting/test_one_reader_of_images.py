"""An image file is read alike by training, `predict`, the exported folder and the server, whatever its format."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import types
from pathlib import Path
from typing import Any, Callable, Dict, List, Tuple

import numpy as np
import pytest
from PIL import Image, ImageCms

from mxtrain.errors import LoaderError
from mxtrain.exporting.bundle import bundled
from mxtrain.serving.errors import RequestError
from mxtrain.serving.readers import BodyLimits
from mxtrain.vision.exported_images import read_image
from mxtrain.vision.images.decoding import DecodedSource
from mxtrain.vision.images.files import ImageFiles
from mxtrain.vision.images.placer import Placer
from mxtrain.vision.images.settings import Decoding
from mxtrain.vision.served import ImageBodyReader

PHOTO = np.random.default_rng(5).integers(0, 256, (43, 64, 3), dtype=np.uint8)
DEEP = np.linspace(100, 2900, 160 * 120).reshape(120, 160).astype(np.uint16)
LIMITS = BodyLimits(1 << 20, 8)


def photo(width: int = 160, height: int = 120) -> Image.Image:
    return Image.fromarray(PHOTO).resize((width, height), Image.BICUBIC)


def saved(image: Image.Image, kind: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def rotated(orientation: int) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return saved(photo(300, 200), "JPEG", exif=exif)


FILES: Dict[str, Callable[[], bytes]] = {
    "a large JPEG": lambda: saved(photo(640, 427), "JPEG"),
    "a grey JPEG": lambda: saved(photo().convert("L"), "JPEG"),
    "a progressive JPEG": lambda: saved(photo(), "JPEG", progressive=True, subsampling=2),
    "CMYK": lambda: saved(photo().convert("CMYK"), "JPEG"),
    "a profile": lambda: saved(
        photo(), "JPEG", icc_profile=ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    ),
    "PNG": lambda: saved(photo(), "PNG"),
    "alpha": lambda: saved(photo().convert("RGBA"), "PNG"),
    "grey with alpha": lambda: saved(photo().convert("LA"), "PNG"),
    "a palette": lambda: saved(photo().quantize(40), "PNG"),
    "a transparent palette": lambda: saved(photo().quantize(40), "PNG", transparency=3),
    "one bit": lambda: saved(photo().convert("1"), "PNG"),
    "GIF": lambda: saved(photo().quantize(9), "GIF"),
    "a moving GIF": lambda: saved(photo(90, 60), "GIF", save_all=True, append_images=[photo(60, 90).resize((90, 60))]),
    "WebP": lambda: saved(photo(), "WEBP"),
    "BMP": lambda: saved(photo(), "BMP"),
    "PPM": lambda: saved(photo(), "PPM"),
    "TIFF": lambda: saved(photo(), "TIFF"),
    "TIFF with LZW": lambda: saved(photo(), "TIFF", compression="tiff_lzw"),
    "16 bits, PNG": lambda: saved(Image.fromarray(DEEP), "PNG"),
    "16 bits, TIFF": lambda: saved(Image.fromarray(DEEP), "TIFF"),
    "16 bits, PGM": lambda: saved(Image.fromarray(DEEP), "PPM"),
    "floats": lambda: saved(Image.fromarray((DEEP / 3000).astype(np.float32)), "TIFF"),
    **{f"orientation {number}": (lambda number=number: rotated(number)) for number in range(1, 9)},
}
WINDOWS: List[Any] = ["auto", "full", (1500.0, 2800.0)]


def signature_of(decoding: Decoding, dtype: str, **more: Any) -> Dict[str, Any]:
    """The part of signature.json that reads images, as JSON carries it."""
    values = {
        "shape": list(decoding.shape),
        "mean": [0.4] * decoding.shape[0],
        "std": [0.2] * decoding.shape[0],
        "decoding": decoding.to_json(),
    }
    return json.loads(
        json.dumps(
            {
                "task": "classification",
                "samples": "images",
                "class_names": ["a", "b"],
                "signature": values,
                "inputs": [{"name": "input", "dtype": dtype, "shape": ["batch", *decoding.shape]}],
                **more,
            }
        )
    )


def readings(path: Path, decoding: Decoding, dtype: str) -> Tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The pixels that training, the exported folder and the server read."""
    trained, _ = DecodedSource(ImageFiles([str(path)]), decoding).fetch(np.array([0]), seed=0, epoch=0, train=False)
    signature = signature_of(decoding, dtype)
    spec = types.SimpleNamespace(name="input", dtype=np.dtype(dtype))
    served = ImageBodyReader(signature, spec).read(path.read_bytes(), "image/png", LIMITS).inputs["input"]
    return trained, read_image(path.read_bytes(), path.name, signature).image_1CHW, served


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("name", FILES)
def test_training_folder_and_server_read_the_same_pixels(name: str, channels: int, tmp_path: Path) -> None:
    path = tmp_path / "image.bin"
    path.write_bytes(FILES[name]())
    trained, exported, served = readings(path, Decoding((channels, 24, 20), 0.875), "float32")
    assert trained.std() > 2
    assert exported.dtype == np.float32
    for found in (exported, served):
        np.testing.assert_array_equal(found, trained.astype(np.float32))


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("name", ["16 bits, PNG", "16 bits, TIFF", "16 bits, PGM", "a grey JPEG"])
def test_windows_are_in_the_signature(name: str, window: Any, tmp_path: Path) -> None:
    path = tmp_path / "image.bin"
    path.write_bytes(FILES[name]())
    trained, exported, served = readings(path, Decoding((1, 24, 20), 1.0, window=window), "float32")
    np.testing.assert_array_equal(exported, trained)
    np.testing.assert_array_equal(served, trained)
    expected = DEEP.mean() / 65535 * 255 if isinstance(window, str) else (DEEP.mean() - 100) / 2800 * 255
    if "16" in name:
        assert trained.mean() == pytest.approx(expected, rel=0.02)


def test_deep_pixels_are_rounded_for_a_network_of_bytes(tmp_path: Path) -> None:
    path = tmp_path / "image.bin"
    path.write_bytes(FILES["16 bits, PNG"]())
    trained, exported, _ = readings(path, Decoding((1, 24, 20), 1.0, window=(1500.0, 2800.0)), "uint8")
    np.testing.assert_array_equal(exported, np.rint(trained))
    assert exported.dtype == np.uint8 and (exported != np.floor(trained)).any()


@pytest.mark.parametrize("size", [(20, 12), (5, 8), (8, 8), (3, 4)])
def test_images_of_another_size_than_the_network_are_resized_as_in_training(size: Any, tmp_path: Path) -> None:
    """Images of a dataset in memory have the size 8 x 8; `dataset.image_size` is that of the network's input."""
    path = tmp_path / "image.png"
    path.write_bytes(FILES["PNG"]())
    decoding = Decoding((3, 8, 8), 1.0)
    image, _ = DecodedSource(ImageFiles([str(path)]), decoding).fetch(np.array([0]), seed=0, epoch=0, train=False)
    ((placed,), _) = Placer(3, (3, *size), [0.0] * 3, [1 / 255] * 3, "cpu")(image)
    signature = signature_of(decoding, "float32")
    signature["signature"]["shape"] = [3, *size]
    found = read_image(path.read_bytes(), path.name, signature).image_1CHW
    assert found.shape == (1, 3, *size)
    np.testing.assert_allclose(found, placed.asnumpy(), atol=1e-4)


BROKEN: Dict[str, bytes] = {
    "cut": saved(photo(), "JPEG")[:3000],
    "cut PNG": saved(photo(), "PNG")[:9000],
    "empty": b"",
    "text": b"not an image",
    "negative": saved(Image.fromarray(np.full((9, 9), -3, np.int32)), "TIFF"),
    "too large": saved(Image.fromarray(np.full((9, 9), 7.5, np.float32)), "TIFF"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_all_readers_refuse_the_same_files_for_the_same_reason(name: str, tmp_path: Path) -> None:
    path, decoding = tmp_path / "image.bin", Decoding((1, 24, 20))
    path.write_bytes(BROKEN[name])
    with pytest.raises(LoaderError) as trained:
        DecodedSource(ImageFiles([str(path)]), decoding).fetch(np.array([0]), seed=0, epoch=0, train=False)
    reason = trained.value.fact.partition("cannot be read as an image (")[2].rstrip(".)")
    assert reason
    signature = signature_of(decoding, "float32")
    spec = types.SimpleNamespace(name="input", dtype=np.dtype("float32"))
    with pytest.raises(ValueError) as exported:
        read_image(path.read_bytes(), "image.bin", signature)
    with pytest.raises(RequestError) as served:
        ImageBodyReader(signature, spec).read(path.read_bytes(), "image/png", LIMITS)
    expected = "it is none of JPEG" if name in ("empty", "text") else reason
    for error in (exported.value, served.value):
        assert "cannot be read as an image (" in str(error) and expected[:200] in str(error), str(error)


def test_limit_of_pixels_is_checked_before_decoding() -> None:
    signature = signature_of(Decoding((1, 24, 20)), "uint8")
    with pytest.raises(ValueError, match=r"it has 160 x 120 pixels, and at most 19,199 are read"):
        read_image(FILES["16 bits, TIFF"](), "x", signature, 160 * 120 - 1)
    assert read_image(FILES["16 bits, TIFF"](), "x", signature, 160 * 120).size == (120, 160)


@pytest.mark.parametrize("window", [["narrow"], [40, 0], [1, 2, 3], [None, 4]])
def test_server_refuses_a_damaged_window(window: Any) -> None:
    signature = signature_of(Decoding((1, 24, 20)), "uint8")
    signature["signature"]["decoding"]["window"] = window
    with pytest.raises(ValueError, match="window"):
        ImageBodyReader(signature, types.SimpleNamespace(name="input", dtype=np.dtype("uint8")))


@pytest.mark.slow
def test_copied_modules_read_as_ours_without_our_packages(tmp_path: Path) -> None:
    """The modules in the folder import neither mxtrain nor MXNet, pydantic, SciPy or OpenCV."""
    for name, content in bundled("mxtrain.vision.exported_images").items():
        (tmp_path / "reading").mkdir(exist_ok=True)
        (tmp_path / "reading" / name).write_bytes(content)
    decoding = Decoding((3, 24, 20), 0.875)
    (tmp_path / "image.jpg").write_bytes(FILES["a large JPEG"]())
    (tmp_path / "signature.json").write_text(json.dumps(signature_of(decoding, "uint8")))
    code = """
import json, sys
sys.modules.update(dict.fromkeys(("mxtrain", "mxnet", "pydantic", "scipy", "cv2")))
sys.path.insert(0, sys.argv[1])
from reading.exported_images import read_image
found = read_image(open("image.jpg", "rb").read(), "image.jpg", json.load(open("signature.json")))
print(json.dumps(found.image_1CHW.tolist()))
"""
    words = [sys.executable, "-I", "-c", code, str(tmp_path)]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    trained = readings(tmp_path / "image.jpg", decoding, "uint8")[0]
    np.testing.assert_array_equal(np.array(json.loads(done.stdout)), trained)
