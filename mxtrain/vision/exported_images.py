"""Predicts for images with an exported network. Exported folders have a copy of this module.

    image file -> part, size and channels as in training -> the network -> classes, boxes, masks, class maps, key points

Legend: C channels, H height, W width of the network's input, h, w of the image itself, N detections, K classes,
J key points.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

import numpy as np

from mxtrain.data.exported_folder import ExportedFolder
from mxtrain.data.loading.opening import FORMATS, MAX_PIXELS, ImageTooLarge, open_image
from mxtrain.vision.instance_segmentation.drawn_masks import in_image
from mxtrain.vision.pose.crop import Crop
from mxtrain.vision.segmentation.mask_png import mask_png

DEEP = ("I", "F", "I;16", "I;16B", "I;16L")
SCORES_AT_ONCE = 1 << 24
"""Scores of a class map that are enlarged together."""
SHIFT = 0.25
"""Cells by which the maximum of a heat map is moved towards its higher neighbour."""


@dataclass(frozen=True)
class Placed:
    """An image as it enters the network.

    Attributes:
        image_1CHW: uint8.
        size: (height, width) of the image itself.
        fitted: (height, width) of what became of it, at the top left.
        crop: part of the image around the object, in pose estimation; otherwise None.
    """

    image_1CHW: np.ndarray
    size: Tuple[int, int]
    fitted: Tuple[int, int]
    crop: Optional[Crop] = None


def describe_input(signature: Dict[str, Any]) -> str:
    """Returns the content of files that `predict` reads, as a sentence."""
    of_object = " of one object" * (signature["task"] == "pose_estimation")
    return f"an image{of_object}: JPEG, PNG, WebP, GIF, BMP, TIFF or PPM"


def predict(folder: ExportedFolder, content: bytes, name: str) -> Iterator[Dict[str, Any]]:
    """Yields the row that `mxtrain predict` writes for an image.

    Args:
        folder: with the network.
        content: content of the image file.
        name: name of the file.

    Raises:
        ValueError: it is no image that can be read.
    """
    placed = place(upright_image(content, name), folder.signature)
    (input_info,) = folder.signature["inputs"]
    outputs = folder.run({input_info["name"]: placed.image_1CHW.astype(input_info["dtype"])})
    row = describe(folder.signature, outputs, placed)
    if row is not None:
        yield {"file": name, **row}
    elif "probabilities" in outputs:
        probability_K, names = outputs["probabilities"][0], folder.signature["class_names"]
        order = (-probability_K).argsort(kind="stable")[:3]
        top = [{"class": names[k], "probability": round(float(probability_K[k]), 6)} for k in order]
        yield {"file": name, **top[0], "top": top}
    else:
        yield {"file": name, **{key: array.tolist() for key, array in outputs.items()}}


def describe(signature: Dict[str, Any], outputs: Dict[str, np.ndarray], placed: Placed) -> Optional[Dict[str, Any]]:
    """Returns boxes, masks, shares of classes or key points in pixels of the image; None for other outputs.

    Args:
        signature: signature of the folder.
        outputs: outputs of the network for one image.
        placed: the image as it entered the network.
    """
    if placed.crop is not None:
        return _pose(signature, outputs, placed, placed.crop)
    if signature["task"] == "segmentation":
        return _segmented(signature, class_map(outputs["output"][0], placed))
    if "detections" in outputs:
        return {"found": _detections(signature, outputs["detections"][0].astype(np.float64), placed)}
    return None


def upright_image(content: bytes, name: str, max_pixels: int = MAX_PIXELS) -> Any:
    """Returns a file as an upright image of Pillow's.

    Args:
        content: content of the file.
        name: name of the file, for messages.
        max_pixels: largest number of pixels, checked before any is decoded.

    Raises:
        ImageTooLarge: the image has more pixels.
        ValueError: the file cannot be read.
    """
    from PIL import ImageOps

    try:
        image = open_image(content, FORMATS, max_pixels)
        if image.mode in DEEP:
            raise ValueError("it has more than 8 bits a channel. Give its pixels, from 0 to 255, as a .npz file")
        return ImageOps.exif_transpose(image)
    except ImageTooLarge as error:
        raise ImageTooLarge(f"{name} cannot be read: {error}") from error
    except Exception as error:  # Pillow raises OSError, SyntaxError, ValueError, struct.error and its own
        reason = f"it is none of {', '.join(FORMATS)}" if "BytesIO" in str(error) else error
        raise ValueError(f"{name} cannot be read as an image: {reason}") from error


def place(image: Any, signature: Dict[str, Any]) -> Placed:
    """Returns the image as it enters the network.

    Args:
        image: an image of Pillow's.
        signature: signature of the folder.
    """
    input_signature, decoding = signature["signature"], signature["signature"]["decoding"]
    channels, height, width = input_signature["shape"]
    full_width, full_height = image.size
    frame, fit, crop = decoding.get("frame"), decoding.get("fit", ""), None
    fitted = (height, width)
    if signature["task"] == "pose_estimation":
        crop = Crop.around((0.0, 0.0, float(full_width), float(full_height)), (height, width))
        image_CHW = _cropped(image, crop, signature)
    elif frame or fit:
        if frame:
            height, width = frame
        scale = min([1.0] * bool(frame) + [height / full_height, width / full_width])
        fitted = (max(1, round(full_height * scale)), max(1, round(full_width * scale)))
        fitted = (height, width) if fit == "stretch" else fitted
        part_CHW = _resized(image, (0.0, 0.0, full_width, full_height), (fitted[1], fitted[0]), decoding["shape"][0])
        image_CHW = np.empty((len(part_CHW), height, width), np.uint8)
        image_CHW[:] = _fill(signature, len(part_CHW))[:, None, None]
        image_CHW[:, : fitted[0], : fitted[1]] = part_CHW
    else:
        unit = min(full_width / width, full_height / height) * decoding["central_crop"]
        left, top = (full_width - unit * width) / 2, (full_height - unit * height) / 2
        box = (left, top, min(left + unit * width, full_width), min(top + unit * height, full_height))
        image_CHW = _resized(image, box, (width, height), decoding["shape"][0])
    image_1CHW = np.broadcast_to(image_CHW[None], (1, channels, *image_CHW.shape[1:])).copy()
    return Placed(image_1CHW, (full_height, full_width), fitted, crop)


def _cropped(image: Any, crop: Crop, signature: Dict[str, Any]) -> np.ndarray:
    """Returns the part of an image around its object, (C, H, W) uint8."""
    channels = signature["signature"]["decoding"]["shape"][0]

    def resize(box: Tuple[float, float, float, float], size: Tuple[int, int]) -> np.ndarray:
        return _resized(image, box, size, channels)

    return crop.draw(resize, image.size, _fill(signature, channels))


def _resized(image: Any, box: Sequence[float], size: Tuple[int, int], channels: int) -> np.ndarray:
    """Returns a part in another (width, height), (C, H, W); Pillow averages over all pixels of a part that gets
    smaller."""
    from PIL import Image

    resized = image.convert("L" if channels == 1 else "RGB").resize(size, Image.BILINEAR, box=tuple(box))
    return np.asarray(resized).reshape(size[1], size[0], -1).transpose(2, 0, 1)


def _fill(signature: Dict[str, Any], channels: int) -> np.ndarray:
    """Returns the mean colour, which is where no image is."""
    mean = signature["signature"]["mean"]
    mean = mean if len(mean) == channels else [sum(mean) / len(mean)] * channels
    return np.rint(255 * np.asarray(mean)).astype(np.uint8)


def _detections(signature: Dict[str, Any], detection_NR: np.ndarray, placed: Placed) -> List[Dict[str, Any]]:
    """Returns the detections in pixels of the image, highest score first; masks, if any, as COCO's run-length codes."""
    (height, width), (fitted_height, fitted_width) = placed.size, placed.fitted
    scale_4 = np.array([fitted_width / width, fitted_height / height] * 2)
    edge_N4 = detection_NR[:, 2:6] / scale_4
    inside_N4 = np.clip(edge_N4, 0, [width, height] * 2)
    left, top, right, bottom = inside_N4.round(2).T
    is_shown = (detection_NR[:, 0] >= 0) & (detection_NR[:, 1] >= signature["facts"]["score_threshold"])
    is_shown &= (right > left) & (bottom > top)
    rows: List[Dict[str, Any]] = [
        {"class": signature["class_names"][int(row[0])], "score": round(float(row[1]), 6),
         "box": [round(float(edge), 2) for edge in inside_4]}
        for row, inside_4 in zip(detection_NR[is_shown], inside_N4[is_shown])
    ]  # fmt: skip
    if detection_NR.shape[1] > 6:
        side = round((detection_NR.shape[1] - 6) ** 0.5)
        masks_NSS = [_cut(mask_S.reshape(side, side), *edges) for mask_S, *edges in
                     zip(detection_NR[is_shown, 6:], edge_N4[is_shown], inside_N4[is_shown])]  # fmt: skip
        for row, mask_SS, inside_4 in zip(rows, masks_NSS, inside_N4[is_shown]):
            (mask_hw,) = in_image(mask_SS[None], inside_4[None], placed.size)  # all at once would fill the memory
            row["mask"] = {"size": list(placed.size), "counts": coco_code(mask_hw)}
    return rows


def _cut(mask_SS: np.ndarray, edge_4: np.ndarray, inside_4: np.ndarray) -> np.ndarray:
    """Returns a mask of the part of its box that is inside of the image: the means over squares, see
    `mask_arithmetic`."""
    shares = []
    for axis in (0, 1):
        (begin, end), (low, high) = (one[[axis, axis + 2]] for one in (edge_4, inside_4))
        number_S = np.arange(len(mask_SS))
        unit = max(end - begin, 1e-6) / len(mask_SS)
        step = max((high - low) / unit / len(mask_SS), 1e-6)
        low_P1 = (number_S * step + (low - begin) / unit)[:, None]
        common_PS = np.minimum(low_P1 + step, number_S + 1) - np.maximum(low_P1, number_S)
        shares.append(np.maximum(common_PS, 0) / step)
    return shares[1] @ mask_SS @ shares[0].T


def coco_code(mask_hw: np.ndarray) -> str:
    """Returns a mask as COCO's run-length code: lengths of runs, column by column. Source: cocoapi,
    common/maskApi.c."""
    flat = np.concatenate([[0], mask_hw.T.ravel() > 0])
    ends = np.append(np.flatnonzero(flat[1:] != flat[:-1]), mask_hw.size)
    counts, text = np.diff(np.concatenate([[0], ends])).tolist(), ""
    for place, count in enumerate(counts):
        left = count - counts[place - 2] if place > 2 else count
        more = True
        while more:
            bits = left & 31
            left >>= 5
            more = left != -1 if bits & 16 else left != 0
            text += chr(bits + 32 * more + 48)
    return text


def class_map(score_KHW: np.ndarray, placed: Placed) -> np.ndarray:
    """Returns the likeliest class of each pixel, (h, w). Scores of an image that was made smaller are enlarged first,
    some lines at a time: scores of all classes for a large photograph would fill the memory."""
    (height, width), fitted = placed.size, placed.fitted
    score_KHW = score_KHW[:, : fitted[0], : fitted[1]].astype(np.float32)
    class_hw = np.empty((height, width), np.uint16)
    step = max(1, SCORES_AT_ONCE // (len(score_KHW) * width))
    for begin in range(0, height, step):
        line_L = np.arange(begin, min(begin + step, height))
        score_KLw = _enlarged(_enlarged(score_KHW, 1, line_L, height), 2, np.arange(width), width)
        class_hw[line_L] = score_KLw.argmax(axis=0)
    return class_hw


def _enlarged(score_K: np.ndarray, axis: int, line_L: np.ndarray, full: int) -> np.ndarray:
    """Returns some lines of an array that is enlarged along an axis, by linear interpolation between their middles.

    Args:
        score_K: the array.
        axis: the axis.
        line_L: numbers of the lines.
        full: number of all lines after enlarging.
    """
    length = score_K.shape[axis]
    if full == length:
        return np.take(score_K, line_L, axis)
    position_L = np.clip((line_L + 0.5) * (length / full) - 0.5, 0, length - 1).astype(np.float32)
    low = np.floor(position_L).astype(np.int64)
    share = (position_L - low).reshape([-1 if k == axis else 1 for k in range(3)])
    below, above = (np.take(score_K, one, axis) for one in (low, np.minimum(low + 1, length - 1)))
    return below + (above - below) * share


def _segmented(signature: Dict[str, Any], class_hw: np.ndarray) -> Dict[str, Any]:
    """Returns the size, the share of each class, as `mxtrain predict` writes them, and the mask as a PNG file."""
    names = signature["class_names"]
    count_K = np.bincount(class_hw.ravel(), minlength=len(names))
    order = [int(k) for k in np.argsort(-count_K, kind="stable") if count_K[k]]
    shares = {names[k]: round(float(count_K[k] / class_hw.size), 6) for k in order}
    mask = mask_png(class_hw, signature["signature"].get("mask_values") or range(len(names)))
    return {"height": class_hw.shape[0], "width": class_hw.shape[1], "shares": shares, "mask": mask}


def _pose(
    signature: Dict[str, Any], outputs: Dict[str, np.ndarray], placed: Placed, crop: Crop
) -> Dict[str, Any]:  # fmt: skip
    """Returns the key points of the one object that the image shows."""
    (height, width), (full_height, full_width) = placed.fitted, placed.size
    point_J3 = places_of(outputs["output"][0], (height, width))
    place_J2 = point_J3[:, :2] @ crop.back_23[:, :2].T + crop.back_23[:, 2]
    return {
        "score": round(float(point_J3[:, 2].mean()), 6), "box": [0.0, 0.0, float(full_width), float(full_height)],
        "key_points": {
            name: [round(float(x), 2), round(float(y), 2), round(float(score), 6)]
            for name, (x, y), score in zip(signature["class_names"], place_J2, point_J3[:, 2])
        },
    }  # fmt: skip


def places_of(map_Jhw: np.ndarray, size: Tuple[int, int]) -> np.ndarray:
    """Returns x and y, in pixels of the network's input, and the height of the maximum of each heat map, (J, 3)."""
    count, lines, columns = map_Jhw.shape
    predicted_J3 = np.zeros((count, 3))
    for row, map_hw in zip(predicted_J3, map_Jhw):
        line, column = divmod(int(map_hw.argmax()), columns)
        x, y = float(column), float(line)
        if 0 < column < columns - 1:
            x += SHIFT * np.sign(map_hw[line, column + 1] - map_hw[line, column - 1])
        if 0 < line < lines - 1:
            y += SHIFT * np.sign(map_hw[line + 1, column] - map_hw[line - 1, column])
        row[:] = x * size[1] / columns + 0.5, y * size[0] / lines + 0.5, map_hw[line, column]
    return predicted_J3
