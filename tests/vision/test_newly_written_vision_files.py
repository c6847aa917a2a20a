"""Small files of images as other tools and people write them: what is read is what was written, by content."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import numpy as np
import pytest
from PIL import Image

from mxtrain.vision.classification.image_folder import ImageFolder
from mxtrain.vision.classification.image_record import ImageRecord
from mxtrain.vision.detection.coco import Coco
from mxtrain.vision.detection.image_list import ImageList
from mxtrain.vision.detection.voc import Voc
from mxtrain.vision.images.pixels import ImageReader
from mxtrain.vision.kinds import Masks
from mxtrain.vision.pose.coco_key_points import CocoKeyPoints
from mxtrain.vision.segmentation.ade20k import Ade20k
from mxtrain.vision.segmentation.cityscapes import Cityscapes
from mxtrain.vision.segmentation.segmentation_folder import SegmentationFolder
from mxtrain.vision.segmentation.voc_segmentation import VocSegmentation

SIZE = (40, 32)
"""Width and height of all images."""
COLOUR_HWC = np.kron(np.random.RandomState(0).randint(0, 256, (4, 5, 3)), np.ones((8, 8, 1))).astype(np.uint8)
IMAGE = Image.fromarray(COLOUR_HWC)
IS_LIGHT_HW = COLOUR_HWC[..., 0] > 127
Box = Tuple[float, float, float, float]


def encoded(image: Image.Image, kind: str, **options: Any) -> bytes:
    stream = io.BytesIO()
    image.copy().save(stream, kind, **options)
    return stream.getvalue()


def other() -> Image.Image:
    """A further image of a file, which is not read. Saving leaves settings behind in an image."""
    return Image.new("RGB", SIZE, (1, 2, 3))


def exif(orientation: int) -> Image.Exif:
    made = Image.Exif()
    made[0x0112] = orientation
    return made


def image(path: Path, **options: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    IMAGE.copy().save(path, **options)
    return path


def colours(image: Image.Image) -> np.ndarray:
    return np.asarray(image.convert("RGB"))


# Images.

PALETTE = IMAGE.quantize(16)
GREY_HWC = np.repeat(COLOUR_HWC[..., :1], 3, axis=2)
BLACK_WHITE_HWC = np.repeat(IS_LIGHT_HW[..., None] * 255, 3, axis=2)
IMAGES: Dict[str, Tuple[bytes, np.ndarray]] = {
    "two JPEGs in one file of a phone, on its side": (
        encoded(IMAGE, "MPO", save_all=True, append_images=[other()], quality=100, subsampling=0, exif=exif(6)),
        np.rot90(COLOUR_HWC, -1),
    ),
    "PNG with EXIF": (encoded(IMAGE, "PNG", exif=exif(8)), np.rot90(COLOUR_HWC)),
    "WebP with alpha, mirrored": (
        encoded(IMAGE.convert("RGBA"), "WEBP", lossless=True, exif=exif(2)),
        COLOUR_HWC[:, ::-1],
    ),
    "CMYK TIFF": (encoded(IMAGE.convert("CMYK"), "TIFF"), COLOUR_HWC),
    "CMYK JPEG": (encoded(IMAGE.convert("CMYK"), "JPEG", quality=100, subsampling=0), COLOUR_HWC),
    "palette of 4 bits, one colour transparent": (encoded(PALETTE, "PNG", bits=4, transparency=3), colours(PALETTE)),
    "grey with alpha": (
        encoded(Image.merge("LA", [Image.fromarray(COLOUR_HWC[..., 0]), IMAGE.getchannel(1)]), "PNG"),
        GREY_HWC,
    ),
    "fax": (encoded(Image.fromarray(IS_LIGHT_HW), "TIFF", compression="group4"), BLACK_WHITE_HWC),
    "BMP of 1 bit": (encoded(Image.fromarray(IS_LIGHT_HW), "BMP"), BLACK_WHITE_HWC),
    "BMP with alpha": (encoded(IMAGE.convert("RGBA"), "BMP"), COLOUR_HWC),
    "animated GIF": (encoded(PALETTE, "GIF", save_all=True, append_images=[other()]), colours(PALETTE)),
    "animated WebP": (encoded(IMAGE, "WEBP", save_all=True, append_images=[other()], lossless=True), COLOUR_HWC),
    "animated PNG": (encoded(IMAGE, "PNG", save_all=True, append_images=[other()]), COLOUR_HWC),
    "TIFF of two pages": (encoded(IMAGE, "TIFF", save_all=True, append_images=[other()]), COLOUR_HWC),
    "TIFF with predictor": (encoded(IMAGE, "TIFF", compression="tiff_lzw", tiffinfo={317: 2}), COLOUR_HWC),
    "PPM in words": (b"P3 # red, blue\n2 1 255\n255 0 0  0 0 255\n", np.array([[[255, 0, 0], [0, 0, 255]]])),
}


@pytest.mark.parametrize("name", IMAGES)
def test_images(name: str) -> None:
    content, wanted_HWC = IMAGES[name]
    reader = ImageReader(content)
    height, width = wanted_HWC.shape[:2]
    assert reader.size == (width, height)
    found_HWC = reader.resized((0, 0, width, height), (width, height), 3).transpose(1, 2, 0).astype(int)
    assert np.abs(found_HWC - wanted_HWC).max() <= (2 if "JPEG" in name or "CMYK" in name else 0)


def test_a_folder_as_it_was_copied_from_several_systems(tmp_path: Path) -> None:
    for split, count in (("Training Images", 3), ("VALID", 2), ("test_set", 1)):
        for name in ("Chat noir", "été"):
            for number in range(count):
                image(tmp_path / split / name / f"sub {number}" / f"IMG {number}.JPG")
    first = tmp_path / "Training Images/été"
    for name in (".DS_Store", "Thumbs.db", "._IMG 0.JPG", "desktop.ini"):
        (first / name).write_bytes(b"\0\1")
    splits = ImageFolder(root=str(tmp_path), image_size=[32, 40]).open()
    assert splits.class_names == ["Chat noir", "été"] and splits.test is not None
    for source, wanted in ((splits.train, [0] * 3 + [1] * 3), (splits.val, [0, 0, 1, 1]), (splits.test, [0, 1])):
        found = [source.encoded.read(index) for index in range(len(source))]  # type: ignore[union-attr]
        assert [label for _, label in found] == wanted
        assert all(ImageReader(content).size == SIZE for content, _ in found)


# Records of MXNet's own writer.


def write_record(root: Path, name: str, labels: Sequence[Any], ending: str = ".png", **options: Any) -> None:
    from mxtrain.engine.backend import mx

    writer = mx.recordio.MXIndexedRecordIO(str(root / f"{name}.idx"), str(root / f"{name}.rec"), "w")
    for number, label in enumerate(labels):
        header = mx.recordio.IRHeader(0, label, 7 * number, 0)  # ids need not follow each other
        writer.write_idx(7 * number, mx.recordio.pack_img(header, COLOUR_HWC[..., ::-1], img_fmt=ending, **options))
    writer.close()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # MXNet calls what NumPy has renamed
@pytest.mark.parametrize("form", ["number", "array of one"])
def test_records_of_classes(tmp_path: Path, form: str) -> None:
    labels = [0.0, 2.0, 1.0, 2.0, 0.0, 1.0]
    given = labels if form == "number" else [np.array([label], np.float32) for label in labels]
    write_record(tmp_path, "train", given, quality=3)
    write_record(tmp_path, "val", given[:2], quality=3)
    splits = ImageRecord(root=str(tmp_path), prefix="", image_size=[32, 40]).open()
    found = [splits.train.encoded.read(index) for index in range(6)]  # type: ignore[attr-defined]
    assert splits.class_names == ["0", "1", "2"] and len(splits.val) == 2
    assert [label for _, label in found] == labels
    for content, _ in found:
        image_CHW = ImageReader(content).resized((0, 0, *SIZE), SIZE, 3)
        assert np.array_equal(image_CHW.transpose(1, 2, 0), COLOUR_HWC)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_records_of_boxes_with_a_header_of_three_and_six_numbers_each(tmp_path: Path) -> None:
    label = np.array([3, 6, 99, 1, 0.125, 0.25, 0.5, 0.75, 1, 0, 0, 0, 1, 1, 0], np.float32)
    write_record(tmp_path, "train", [label] * 3 + [np.array([2, 6], np.float32)], quality=3)
    source = ImageList(root=str(tmp_path), image_size=[32, 40], val_fraction=0.25).open().train
    boxes = [source.boxes(index)[:, :6].tolist() for index in range(3)]  # type: ignore[attr-defined]
    both = [[5, 8, 20, 24, 1, 1], [0, 0, 40, 32, 0, 0]]
    assert boxes.count(both) == 3 or (boxes.count(both) == 2 and boxes.count([]) == 1)


@pytest.mark.parametrize("form", ["bytes of Windows", "absolute paths", "pixels"])
def test_lists_of_boxes(tmp_path: Path, form: str) -> None:
    edges = "5\t8\t20\t24" if form == "pixels" else "0.125\t0.25\t0.5\t0.75"
    rows = []
    for number in range(4):
        path = image(tmp_path / "Bilder ä" / f"{number} x.jpg")
        shown = str(path) if form == "absolute paths" else f"Bilder ä\\{number} x.jpg"
        rows.append(f"{number}.0\t4\t5\t40\t32\t1\t{edges}\t{shown}")
    end = "\r\n" if form == "bytes of Windows" else "\n"
    (tmp_path / "train.lst").write_bytes((end.join(["\ufeff" + rows[0], "", *rows[1:]]) + end).encode())
    (tmp_path / "classes.txt").write_bytes("\ufeffHund\r\nKatze\r\n".encode())
    splits = ImageList(root=str(tmp_path), image_size=[32, 40], val_fraction=0.25).open()
    assert splits.class_names == ["Hund", "Katze"] and (len(splits.train), len(splits.val)) == (3, 1)
    for index in range(3):
        assert splits.train.boxes(index)[:, :5].tolist() == [[5, 8, 20, 24, 1]]  # type: ignore[attr-defined]


# COCO.


def coco(names: Sequence[str]) -> Dict[str, Any]:
    images = [{"id": number, "file_name": name, "width": 40, "height": 32} for number, name in enumerate(names)]
    annotations = [
        {
            "id": number,
            "image_id": number,
            "category_id": 30,
            "bbox": [5, 8, 15, 16],
            "area": 240.0,
            "iscrowd": 0,
            "segmentation": [[5, 8, 20, 8, 20, 24, 5, 24]],
        }
        for number in range(len(names))
    ]
    categories = [{"id": 30, "name": "dog", "supercategory": "animal"}, {"id": 7, "name": "cat"}]
    return {"images": images, "annotations": annotations, "categories": categories}


def roboflow(parts: Dict[str, Any]) -> None:
    parts["categories"] = [{"id": 0, "name": "dog", "supercategory": "none"}, *parts["categories"]]
    for one in parts["annotations"]:
        one.update(segmentation=[], bbox=[5, 8, 15.0, 16.0])


def cvat(parts: Dict[str, Any]) -> None:
    for one in parts["annotations"]:
        one["attributes"] = {"occluded": False, "rotation": 0.0, "track_id": 3}
    for one in parts["images"]:
        one.update(license=0, flickr_url="", coco_url="", date_captured=0)
    parts.update(licenses=[{"name": "", "id": 0, "url": ""}], info={"contributor": "", "year": ""})


def label_studio(parts: Dict[str, Any]) -> None:
    for one in parts["images"]:
        one["file_name"] = "..\\images\\" + one["file_name"]
    for one in parts["annotations"]:
        one.update(ignore=0, segmentation=[], bbox=[5.0, 8.0, 15.000000000000002, 16.0])
    parts["info"] = {"year": 2024, "version": "1.0", "url": ""}


def labelme(parts: Dict[str, Any]) -> None:
    for one in parts["annotations"]:
        one["segmentation"][0] += one["segmentation"][0][:2]  # the first point comes again
        del one["id"], one["iscrowd"]
    for one in parts["images"]:
        one.update(width="40", height="32")


def names_as_ids(parts: Dict[str, Any]) -> None:
    names = [one["file_name"] for one in parts["images"]]
    for one in parts["images"]:
        one["id"] = one["file_name"]
    for one in parts["annotations"]:
        one["image_id"] = names[one["image_id"]]


def annotations_first(parts: Dict[str, Any]) -> None:
    for key in ("images", "categories"):
        parts[key] = list(reversed(parts.pop(key)))


@pytest.mark.parametrize("tool", [roboflow, cvat, label_studio, labelme, names_as_ids, annotations_first])
def test_coco_of_tools(tmp_path: Path, tool: Callable[[Dict[str, Any]], None]) -> None:
    names = [f"{number} ñ.jpg" for number in range(4)]
    for name in names:
        image(tmp_path / "images" / name)
    parts = coco(names)
    tool(parts)
    (tmp_path / "images/_annotations.coco.json").write_bytes(json.dumps(parts, ensure_ascii=False).encode("utf-8-sig"))
    splits = Coco(
        root=str(tmp_path),
        train_annotations="images/_annotations.coco.json",
        train_images="images",
        val_annotations=None,
        val_fraction=0.25,
        image_size=[32, 40],
    ).open()
    assert splits.class_names == ["cat", "dog"] and splits.category_ids == [7, 30]
    assert (len(splits.train), len(splits.val)) == (3, 1)
    for index in range(3):
        found = splits.train.boxes(index)  # type: ignore[attr-defined]
        assert found[:, :7].tolist() == [[5, 8, 20, 24, 1, 0, 240]]
        assert Path(splits.train.location(index).file).name in names  # type: ignore[attr-defined]


def pixels(*parts: Box) -> np.ndarray:
    mask_hw = np.zeros((32, 40), np.uint8)
    for left, top, right, bottom in parts:
        mask_hw[int(top) : int(bottom), int(left) : int(right)] = 1
    return mask_hw


def polygon(left: float, top: float, right: float, bottom: float) -> List[float]:
    return [left, top, right, top, right, bottom, left, bottom]


def lengths(mask_hw: np.ndarray) -> List[int]:
    """Runs in columns, the first of which is of background."""
    flat = mask_hw.T.ravel()
    edges = [0, *(np.flatnonzero(np.diff(flat)) + 1).tolist(), len(flat)]
    return [0] * int(flat[0]) + np.diff(edges).tolist()


ONE, TWO = (5, 8, 20, 24), (30, 2, 38, 30)
MASKS: Dict[str, Tuple[Any, np.ndarray]] = {
    "polygon": ([polygon(*ONE)], pixels(ONE)),
    "two polygons that do not touch": ([polygon(*ONE), polygon(*TWO)], pixels(ONE, TWO)),
    "an empty polygon beside": ([polygon(*ONE), []], pixels(ONE)),
    "whole numbers as floats": ([[float(number) for number in polygon(*ONE)]], pixels(ONE)),
    "runs": ({"size": [32, 40], "counts": lengths(pixels(ONE, TWO))}, pixels(ONE, TWO)),
    "runs from the first pixel": ({"counts": lengths(pixels((0, 0, 9, 32))), "size": [32, 40]}, pixels((0, 0, 9, 32))),
    "runs as floats": ({"size": [32, 40], "counts": [float(n) for n in lengths(pixels(ONE))]}, pixels(ONE)),
}


@pytest.mark.parametrize("form", MASKS)
def test_masks_of_coco(tmp_path: Path, form: str) -> None:
    segmentation, wanted_hw = MASKS[form]
    names = [f"{number}.png" for number in range(2)]
    for name in names:
        image(tmp_path / "i" / name)
    parts = coco(names)
    rows, columns = np.flatnonzero(wanted_hw.any(axis=1)), np.flatnonzero(wanted_hw.any(axis=0))
    left, top, right, bottom = (int(edge) for edge in (columns[0], rows[0], columns[-1] + 1, rows[-1] + 1))
    for one in parts["annotations"]:
        one.update(segmentation=segmentation, bbox=[left, top, right - left, bottom - top])
    (tmp_path / "a.json").write_text(json.dumps(parts))
    dataset = Coco(
        root=str(tmp_path),
        train_annotations="a.json",
        train_images="i",
        val_annotations=None,
        val_fraction=0.5,
        image_size=[32, 40],
    ).for_run(Masks)
    (found_hw,) = dataset.open().train.masks(0)  # type: ignore[attr-defined]
    assert np.array_equal(found_hw, wanted_hw)


@pytest.mark.parametrize("form", ["flat", "in threes", "floats"])
def test_key_points_of_coco(tmp_path: Path, form: str) -> None:
    names = [f"{number}.png" for number in range(4)]
    for name in names:
        image(tmp_path / "i" / name)
    parts = coco(names)
    points: List[Any] = [6, 9, 2, 0, 0, 0, 18, 20, 1]
    points = [points[at : at + 3] for at in (0, 3, 6)] if form == "in threes" else points
    points = [float(number) for number in points] if form == "floats" else points
    for one in parts["annotations"]:
        one.update(keypoints=points, num_keypoints=2)
    parts["annotations"] += [{**parts["annotations"][0], "id": 8, "keypoints": given} for given in (None, [], [0] * 9)]
    parts["categories"][0].update(keypoints=["Nose", "L_Paw", "R_Paw"], skeleton=[[1, 2], [1, 3]])
    (tmp_path / "a.json").write_text(json.dumps(parts))
    splits = CocoKeyPoints(
        root=str(tmp_path),
        train_annotations="a.json",
        train_images="i",
        val_annotations=None,
        val_fraction=0.25,
    ).open()
    assert splits.class_names == ["Nose", "L_Paw", "R_Paw"] and (len(splits.train), len(splits.val)) == (3, 1)
    assert splits.key_points is not None
    assert splits.key_points.flip_pairs == [(1, 2)] and splits.key_points.skeleton == [(0, 1), (0, 2)]
    objects = splits.train.source.objects  # type: ignore[attr-defined]
    assert all(known.tolist() == [6.5, 9.5, 2, 18.5, 20.5, 1] for known in objects.point_NJ3[:, [0, 2]].reshape(-1, 6))
    assert (objects.point_NJ3[:, 1, 2] == 0).all() and objects.box_N4[0].tolist() == [5, 8, 20, 24]


# VOC.

OBJECT = (
    "<object><name>{}</name><pose>Unspecified</pose><truncated>0</truncated><difficult>0</difficult><occluded>0"
    "</occluded><bndbox><xmin>6</xmin><xmax>20</xmax><ymin>9</ymin><ymax>24</ymax></bndbox></object>"
)
HEAD = (
    "<folder></folder><filename>x.jpg</filename><path>C:\\x.jpg</path><size><width>40</width><height>32</height></size>"
)
DOCUMENTS: Dict[str, bytes] = {
    "Roboflow": f"<annotation>{HEAD}{OBJECT.format('Hund')}</annotation>".encode(),
    "LabelImg": f"<annotation verified='yes'>\n\t{HEAD}{OBJECT.format('Hund')}\n</annotation>".encode(),
    "byte order mark": f"<?xml version='1.0'?>\r\n<annotation>{HEAD}{OBJECT.format('Hund')}</annotation>".encode(
        "utf-8-sig"
    ),
    "UTF-16": f'<?xml version="1.0" encoding="utf-16"?><annotation>{OBJECT.format("Hund")}</annotation>'.encode(
        "utf-16"
    ),
    "characters as they are": f"<!-- --><annotation>{HEAD}{OBJECT.format('<![CDATA[Hund]]>')}</annotation>".encode(),
    "a character by number": f"<annotation>{HEAD}{OBJECT.format(' &#72;und ')}</annotation>".encode(),
    "namespace": f'<annotation xmlns="http://example.org">{HEAD}{OBJECT.format("hund")}</annotation>'.encode(),
    "decimals": f"<annotation>{HEAD}{OBJECT.format('Hund')}</annotation>".replace(">6<", ">6.0<").encode(),
}


@pytest.mark.parametrize("beside", [False, True], ids=["VOCdevkit", "beside images"])
@pytest.mark.parametrize("name", DOCUMENTS)
def test_annotations_of_voc(tmp_path: Path, name: str, beside: bool) -> None:
    stems = [f"Bild {number}.neu" for number in range(4)]
    images, annotations = (tmp_path / folder for folder in (("", "") if beside else ("JPEGImages", "Annotations")))
    for stem in stems:
        image(images / f"{stem}.JPG")
        annotations.mkdir(exist_ok=True)
        (annotations / f"{stem}.XML").write_bytes(DOCUMENTS[name])
    lists = tmp_path / "ImageSets/Main"
    lists.mkdir(parents=True)
    (lists / "train.txt").write_bytes("\r\n".join([f'"{stems[0]}"', f"{stems[1]}.JPG  1", *stems[2:]]).encode())
    splits = Voc(root=str(tmp_path), classes=["Hund"], val_split=None, val_fraction=0.25, image_size=[32, 40]).open()
    assert (len(splits.train), len(splits.val)) == (3, 1)
    for index in range(3):
        assert splits.train.boxes(index)[:, :6].tolist() == [[5, 8, 20, 24, 0, 0]]  # type: ignore[attr-defined]


# Masks.

VALUE_HW = (np.arange(32 * 40).reshape(32, 40) // 100 % 3).astype(np.uint8)


def with_palette(path: Path, **options: Any) -> None:
    image = Image.fromarray(VALUE_HW)
    image.putpalette([number * 37 % 256 for number in range(768)])
    image.save(path, **options)


SAVED: Dict[str, Tuple[str, Callable[[Path], object], Optional[np.ndarray]]] = {
    "palette": (".png", with_palette, None),
    "palette of 2 bits": (".png", lambda path: with_palette(path, bits=2), None),
    "palette with alpha": (".PNG", lambda path: with_palette(path, transparency=bytes([0, 255, 128])), None),
    "palette in GIF": (".gif", with_palette, None),
    "palette in BMP": (".bmp", with_palette, None),
    "palette in TIFF": (".tif", with_palette, None),
    "grey in three channels": (".png", lambda path: Image.fromarray(VALUE_HW).convert("RGB").save(path), None),
    "grey, opaque": (".png", lambda path: Image.fromarray(VALUE_HW).convert("LA").save(path), None),
    "32 bits": (".tiff", lambda path: Image.fromarray(VALUE_HW.astype(np.int32)).save(path), None),
    "16 bits": (".png", lambda path: Image.fromarray(VALUE_HW.astype(np.uint16)).save(path), None),
    "1 bit": (".png", lambda path: Image.fromarray(VALUE_HW > 0).save(path), VALUE_HW > 0),
    "1 bit as a fax": (
        ".tif",
        lambda path: Image.fromarray(VALUE_HW > 0).save(path, compression="group4"),
        VALUE_HW > 0,
    ),
}


def masks_of(source: Any) -> List[np.ndarray]:
    return list(source.fetch(np.arange(len(source)), seed=0, epoch=0, train=False)[1])


@pytest.mark.parametrize("name", SAVED)
def test_masks_in_folders(tmp_path: Path, name: str) -> None:
    ending, save, wanted_HW = SAVED[name]
    for number in range(3):
        path = tmp_path / "Masks" / f"Bild {number}{ending}"
        path.parent.mkdir(exist_ok=True)
        save(path)
        image(tmp_path / "IMAGES" / f"Bild {number}.JPEG")
    (tmp_path / "classes.txt").write_bytes("\ufeffHintergrund\r\nTür\r\nDach\r\n\r\n".encode())
    (tmp_path / "Masks/Thumbs.db").write_bytes(b"\0")
    splits = SegmentationFolder(root=str(tmp_path), image_size=[32, 40], val_fraction=0.3).open()
    assert splits.class_names == ["Hintergrund", "Tür", "Dach"] and (len(splits.train), len(splits.val)) == (2, 1)
    wanted_HW = VALUE_HW if wanted_HW is None else wanted_HW
    assert all(np.array_equal(mask_HW, wanted_HW) for mask_HW in [*masks_of(splits.train), *masks_of(splits.val)])


def test_masks_of_voc_in_lists_with_spaces_and_quotes(tmp_path: Path) -> None:
    for number in range(3):
        image(tmp_path / f"VOC2012/JPEGImages/{number} é.jpg")
        (tmp_path / "VOC2012/SegmentationClass").mkdir(exist_ok=True)
        with_palette(tmp_path / f"VOC2012/SegmentationClass/{number} é.png")
    lists = tmp_path / "VOC2012/ImageSets/Segmentation"
    lists.mkdir(parents=True)
    (lists / "train.txt").write_bytes('\ufeff"0 é"\r\n1 e\u0301\r\n2 é.jpg\r\n'.encode())
    splits = VocSegmentation(root=str(tmp_path), val_split=None, val_fraction=0.3, image_size=[32, 40]).open()
    assert [np.array_equal(mask_HW, VALUE_HW) for mask_HW in masks_of(splits.train)] == [True, True]


def test_masks_of_ade20k_and_cityscapes(tmp_path: Path) -> None:
    for split, part in (("training", "train"), ("validation", "val")):
        for number in range(2):
            image(tmp_path / f"ade/images/{split}/{number}.jpg")
            image(tmp_path / f"city/leftImg8bit/{part}/köln/{number}_leftImg8bit.png")
            for path, value_HW in (
                (tmp_path / f"ade/annotations/{split}/{number}.png", VALUE_HW * 75),
                (tmp_path / f"city/gtFine/{part}/köln/{number}_gtFine_labelIds.png", np.array([33, 0, 8])[VALUE_HW]),
                (tmp_path / f"city/gtFine/{part}/köln/{number}_gtFine_instanceIds.png", VALUE_HW),
            ):
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(value_HW.astype(np.uint8)).save(path)
    rows = [f"{number}\t0.1\t1\t1\tn{number}, other" for number in range(1, 151)]
    (tmp_path / "ade/objectInfo150.txt").write_bytes("\r\n".join(["Idx\tRatio\tTrain\tVal\tName", *rows]).encode())
    ade, city = (
        kind(root=str(tmp_path / name), image_size=[32, 40]).open()
        for kind, name in ((Ade20k, "ade"), (Cityscapes, "city"))
    )
    assert ade.class_names[:2] == ["n1", "n2"] and len(ade.class_names) == 150
    for splits, classes in ((ade, [-1, 74, 149]), (city, [18, -1, 1])):
        for mask_HW in (*masks_of(splits.train), *masks_of(splits.val)):
            assert np.array_equal(mask_HW, np.array(classes)[VALUE_HW])
