"""Predicts for images with an exported network. Exported folders have a copy of this module.

    image file -> crop, size and channels as in training -> the network -> classes, numbers, boxes, masks, class maps,
    key points

Legend: C channels, H height, W width of the network's input, h, w of the original image, N detections, K classes,
J key points, S cells along a side of a mask, P cells along a side of a cropped mask.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple, Union

import numpy as np

from mxtrain.data.class_rows import row_of_outputs
from mxtrain.data.exported_folder import ExportedFolder, targets_in
from mxtrain.data.loading.opening import EXTENSIONS, FORMATS, ImageTooLarge
from mxtrain.data.number_rows import described_numbers
from mxtrain.vision.images.dicom_volume import open_frames
from mxtrain.vision.images.fitting import central_box, fill_of, fit_into_frame, fit_size
from mxtrain.vision.images.nifti import ENDINGS as VOLUME_ENDINGS
from mxtrain.vision.images.nifti import is_nifti, is_packed_nifti, open_volume
from mxtrain.vision.images.pixels import ImageReader, read_error
from mxtrain.vision.images.tiff import tiff_example
from mxtrain.vision.images.volume_slice import Volume, VolumeSlice
from mxtrain.vision.images.window import as_window
from mxtrain.vision.instance_segmentation.drawn_masks import paste_masks
from mxtrain.vision.pose.crop import Crop
from mxtrain.vision.segmentation.mask_png import class_shares, mask_png

ENDINGS = (*EXTENSIONS, ".dcm", ".dicom", *VOLUME_ENDINGS)
"""Extensions of the files that are read of a folder."""
MAX_INPUT_ERROR = 2.0**-6
"""Largest difference of the inputs of a file when a proof is repeated: decoders of JPEG round differently."""
MAX_EXAMPLE = 1200
"""Largest side of an image that is made for the proof."""
MAX_UPSAMPLED_SCORES = 1 << 24
"""Largest number of scores that are upsampled at once: 64 MiB as float32."""
SHIFT = 0.25
"""Distance in cells by which the maximum of a heat map is moved towards its higher neighbour; see
`vision.pose.heat_maps`."""


@dataclass(frozen=True)
class PreparedImage:
    """An image that was cropped or resized to the input of the network.

    Attributes:
        image_1CHW: the network's input from 0 to 255, in the dtype of the input.
        size: (height, width) of the original image.
        resized: (height, width) of the resized image, which is at the top left of the input.
        crop: part of the image around the object, in pose estimation; otherwise None.
    """

    image_1CHW: np.ndarray
    size: Tuple[int, int]
    resized: Tuple[int, int]
    crop: Optional[Crop] = None


def describe_input(signature: Dict[str, Any]) -> str:
    """Returns the content of files that `predict` reads, as a sentence."""
    of_object = " of one object" * ("KeyPoints" in targets_in(signature))
    return f"an image{of_object} of 8 or 16 bits: JPEG, PNG, WebP, GIF, BMP, TIFF, PPM, DICOM (needs pydicom), or NIfTI"


def predict(folder: ExportedFolder, content: bytes, name: str) -> Iterator[Dict[str, Any]]:
    """Yields the row that `mxtrain predict` writes for an image, or the rows for the slices of a volume.

    Args:
        folder: folder of the exported network.
        content: content of the image file.
        name: name of the file.

    Raises:
        ValueError: the content is not an image, or is not supported.
    """
    for part_name, part in parts_of(content, name, folder.signature):
        prepared = read_image(part, part_name, folder.signature)
        outputs = folder.run({folder.signature["inputs"][0]["name"]: prepared.image_1CHW})
        row = describe_outputs(folder.signature, outputs, prepared)
        yield {"file": part_name, **(row_of_outputs(folder.signature, outputs) if row is None else row)}


def parts_of(content: bytes, name: str, signature: Dict[str, Any]) -> Iterator[Tuple[str, Union[bytes, VolumeSlice]]]:
    """Yields the images of a file with their names: the file itself, or the slices of a volume, called `FILE:NUMBER`.

    Args:
        content: content of the file.
        name: name of the file.
        signature: signature of the folder.

    Raises:
        ValueError: the file is a damaged volume.
    """
    volume = volume_in(content, name, signature)
    if volume is None:
        yield name, content
        return
    for number in range(volume.num_slices):
        yield f"{name}:{number}", VolumeSlice(volume, number)


def volume_in(content: bytes, name: str, signature: Dict[str, Any]) -> Optional[Volume]:
    """Opens the content of a file as a volume, NIfTI or DICOM with several frames; returns None for images.

    Args:
        content: content of the file.
        name: name of the file, for messages.
        signature: signature of the folder.

    Raises:
        ImageTooLarge: it is too large.
        ValueError: it is damaged, or of an unsupported kind.
    """
    try:
        if is_nifti(content) or is_packed_nifti(content):
            return open_volume(content, signature["signature"]["decoding"].get("slice_axis", "axial"))
        return open_frames(content)
    except ValueError as error:
        kind = ImageTooLarge if isinstance(error, ImageTooLarge) else ValueError
        raise kind(read_error(name, error, "a volume").rstrip(".")) from error


def examples(signature: Dict[str, Any]) -> List[Tuple[str, bytes]]:
    """Returns names and contents of images for the proof of an export: larger than the input of the network, so that
    decoders of JPEG scale them; for networks that take neither grey nor colour, a TIFF file of as many bands."""
    from PIL import Image

    channels = signature["signature"]["decoding"]["shape"][0]
    if channels not in (1, 3):
        return [("proof.tif", tiff_example(channels, [side + 5 for side in signature["signature"]["shape"][1:]]))]
    height, width = (min(3 * side + 5, MAX_EXAMPLE) for side in signature["signature"]["shape"][1:])
    draw = np.random.default_rng(0)
    image = Image.fromarray(draw.integers(0, 256, (9, 7, 3), dtype=np.uint8)).resize((width, height), Image.BICUBIC)
    found = []
    for name, kind in (("proof.png", "PNG"), ("proof.jpg", "JPEG")):
        file = io.BytesIO()
        image.save(file, kind)
        found.append((name, file.getvalue()))
    return found


def inputs_of_file(folder: ExportedFolder, content: bytes, name: str) -> Optional[Dict[str, np.ndarray]]:
    """Returns the inputs of the network for an image file, or the first slice of a volume, (1, ...); None in pose
    estimation, whose evaluation crops annotated boxes.

    Args:
        folder: folder of the exported network.
        content: content of the file.
        name: name of the file, for messages.

    Raises:
        ValueError: the file cannot be read.
    """
    signature = folder.signature
    if "KeyPoints" in targets_in(signature):
        return None
    part_name, part = next(parts_of(content, name, signature))
    return {signature["inputs"][0]["name"]: read_image(part, part_name, signature).image_1CHW}


def describe_outputs(
    signature: Dict[str, Any], outputs: Dict[str, np.ndarray], prepared: PreparedImage
) -> Optional[Dict[str, Any]]:
    """Returns boxes, masks, shares of classes or key points, in pixels of the original image, or a predicted number;
    None for other outputs.

    Args:
        signature: signature of the folder.
        outputs: outputs of the network for one image.
        prepared: result of `read_image`.
    """
    if prepared.crop is not None:
        return _pose_row(signature, outputs, prepared, prepared.crop)
    if "ClassMap" in targets_in(signature):
        return _segmentation_row(signature, class_map(outputs["output"][0], prepared))
    if "Number" in targets_in(signature):
        return described_numbers(signature, outputs["output"])
    if "detections" in outputs:
        return {"found": _detection_rows(signature, outputs["detections"][0].astype(np.float64), prepared)}
    return None


def read_image(
    content: Union[bytes, VolumeSlice], name: str, signature: Dict[str, Any], max_pixels: Optional[int] = None
) -> PreparedImage:
    """Decodes an image file, and crops or resizes it to the network's input, as in the evaluation of the trained run.

    Args:
        content: content of the file, or a slice of a volume.
        name: name of the file, for messages.
        signature: signature of the folder.
        max_pixels: largest allowed number of pixels, checked before the image is decoded; None = `MAX_PIXELS` of
            `mxtrain.data.loading.opening`.

    Raises:
        ImageTooLarge: the image has more than `max_pixels`.
        ValueError: the file cannot be read.
    """
    try:
        window = as_window(signature["signature"]["decoding"].get("window") or ["auto"])
        return _prepared(ImageReader(content, window, max_pixels), signature)
    except (ImportError, MemoryError):
        raise
    except Exception as error:  # Pillow raises OSError, SyntaxError, ValueError, struct.error and its own
        reason = ValueError(f"it is none of {', '.join(FORMATS)}") if "BytesIO" in str(error) else error
        kind = ImageTooLarge if isinstance(error, ImageTooLarge) else ValueError
        raise kind(read_error(name, reason).rstrip(".")) from error


def _prepared(image: ImageReader, signature: Dict[str, Any]) -> PreparedImage:
    (channels, *shape), decoding = signature["signature"]["shape"], signature["signature"]["decoding"]
    read_channels = decoding["shape"][0]
    full_width, full_height = image.size
    whole = (0.0, 0.0, float(full_width), float(full_height))
    fill_C = fill_of(signature["signature"]["mean"], read_channels)
    dtype = signature["inputs"][0]["dtype"]
    frame, fit, crop = decoding.get("frame"), decoding.get("fit", ""), None
    resized = (shape[0], shape[1])
    if "KeyPoints" in targets_in(signature):
        crop = Crop.around(whole, resized)
        image_CHW = crop.draw(lambda box, size: image.resized(box, size, read_channels), image.size, fill_C)
    elif frame or fit:
        resized = (
            fit_into_frame(full_height, full_width, frame) if frame else fit_size(full_height, full_width, shape, fit)
        )
        part_CHW = image.resized(whole, resized[::-1], read_channels)
        image_CHW = np.empty((read_channels, *(frame or shape)), part_CHW.dtype)
        image_CHW[:] = fill_C[:, None, None]
        image_CHW[:, : resized[0], : resized[1]] = part_CHW
    else:
        decoded = decoding["shape"][1:]
        box = central_box(image.size, decoded, decoding["central_crop"])
        image_CHW = image.resized(box, tuple(decoded[::-1]), read_channels)
    image_CHW = resized_input(image_CHW, shape if crop else frame or shape, dtype)
    image_1CHW = np.broadcast_to(image_CHW[None], (1, channels, *image_CHW.shape[1:])).astype(dtype)
    return PreparedImage(image_1CHW, (full_height, full_width), resized, crop)


def _detection_rows(
    signature: Dict[str, Any], detection_NR: np.ndarray, prepared: PreparedImage
) -> List[Dict[str, Any]]:
    """Returns the detections in pixels of the image, highest score first; masks, if any, as COCO's run-length codes."""
    (height, width), (resized_height, resized_width) = prepared.size, prepared.resized
    scale_4 = np.array([resized_width / width, resized_height / height] * 2)
    edge_N4 = detection_NR[:, 2:6] / scale_4
    inside_N4 = np.clip(edge_N4, 0, [width, height] * 2)
    left, top, right, bottom = inside_N4.round(2).T
    is_shown = (detection_NR[:, 0] >= 0) & (detection_NR[:, 1] >= signature["facts"]["score_threshold"])
    # The rounded edges decide, because they are what the row shows.
    is_shown &= (right > left) & (bottom > top)
    rows: List[Dict[str, Any]] = [
        {
            "class": signature["class_names"][int(row[0])],
            "score": round(float(row[1]), 6),
            "box": [round(float(edge), 2) for edge in inside_4],
        }
        for row, inside_4 in zip(detection_NR[is_shown], inside_N4[is_shown])
    ]
    if detection_NR.shape[1] > 6:
        side = round((detection_NR.shape[1] - 6) ** 0.5)
        masks_NSS = [
            _crop_mask(mask_S.reshape(side, side), *edges)
            for mask_S, *edges in zip(detection_NR[is_shown, 6:], edge_N4[is_shown], inside_N4[is_shown])
        ]
        for row, mask_SS, inside_4 in zip(rows, masks_NSS, inside_N4[is_shown]):
            # One at a time: masks of all objects in a large image would fill the memory.
            (mask_hw,) = paste_masks(mask_SS[None], inside_4[None], prepared.size)
            row["mask"] = {"size": list(prepared.size), "counts": coco_run_lengths(mask_hw)}
    return rows


def _crop_mask(mask_SS: np.ndarray, edge_4: np.ndarray, inside_4: np.ndarray) -> np.ndarray:
    """Resamples a mask of a box to the part of the box inside the image, with as many cells, as
    `mask_arithmetic.resample_masks` does.

    Args:
        mask_SS: mask inside the box.
        edge_4: left, top, right, bottom of the box.
        inside_4: the box, clipped to the image.
    """
    weights = []
    for axis in (0, 1):
        (begin, end), (low, high) = (edges[[axis, axis + 2]] for edges in (edge_4, inside_4))
        index_S = np.arange(len(mask_SS))
        cell = max(end - begin, 1e-6) / len(mask_SS)  # in pixels; lengths below are in cells
        step = max((high - low) / cell / len(mask_SS), 1e-6)
        low_P1 = (index_S * step + (low - begin) / cell)[:, None]
        overlap_PS = np.minimum(low_P1 + step, index_S + 1) - np.maximum(low_P1, index_S)
        weights.append(np.maximum(overlap_PS, 0) / step)
    return weights[1] @ mask_SS @ weights[0].T


def coco_run_lengths(mask_hw: np.ndarray) -> str:
    """Encodes a mask as COCO's compressed run-length code: the lengths of runs, column by column, beginning with
    background. A length from the fourth on is written as its difference from the last but one, five bits per character.

    Source: cocoapi, common/maskApi.c.
    """
    flat = np.concatenate([[0], mask_hw.T.ravel() > 0])
    ends = np.append(np.flatnonzero(flat[1:] != flat[:-1]), mask_hw.size)
    counts, text = np.diff(np.concatenate([[0], ends])).tolist(), ""
    for index, count in enumerate(counts):
        # From the fourth run on COCO stores the difference to the run before the last.
        value = count - counts[index - 2] if index > 2 else count
        more = True
        while more:
            bits = value & 31
            value >>= 5
            more = value != -1 if bits & 16 else value != 0
            text += chr(bits + 32 * more + 48)
    return text


def class_map(score_KHW: np.ndarray, prepared: PreparedImage) -> np.ndarray:
    """Returns the class with the highest score of each pixel of the original image, (h, w), uint16.

    Scores are upsampled first, some lines at a time: those of all classes of a large photograph would fill the memory.
    """
    (height, width), resized = prepared.size, prepared.resized
    score_KHW = score_KHW[:, : resized[0], : resized[1]].astype(np.float32)
    class_hw = np.empty((height, width), np.uint16)
    # Some lines at a time: scores of 50 million pixels and 150 classes are 30 GB.
    step = max(1, MAX_UPSAMPLED_SCORES // (len(score_KHW) * width))
    for begin in range(0, height, step):
        line_L = np.arange(begin, min(begin + step, height))
        score_KLw = _upsample(_upsample(score_KHW, 1, line_L, height), 2, np.arange(width), width)
        class_hw[line_L] = score_KLw.argmax(axis=0)
    return class_hw


def resized_input(image_CHW: np.ndarray, size: Sequence[int], dtype: str) -> np.ndarray:
    """Resizes a decoded image to the (height, width) of the network's input, as `Placer` does in training, and converts
    it to the dtype of the input."""
    # A cast alone would cut fractions off, which darkens the image by half a step in the mean.
    is_rounded = np.dtype(dtype).kind in "ui"
    image_CHW = _resized(image_CHW, size)
    return (np.rint(image_CHW) if is_rounded else image_CHW).astype(dtype)


def _resized(image_CHW: np.ndarray, size: Sequence[int]) -> np.ndarray:
    """Returns an image in another size; one of this size unchanged."""
    if image_CHW.shape[1:] == tuple(size):
        return image_CHW
    lines_CHw = _upsample(image_CHW.astype(np.float32), 1, np.arange(size[0]), size[0])
    return _upsample(lines_CHw, 2, np.arange(size[1]), size[1])


def _upsample(score_K: np.ndarray, axis: int, line_L: np.ndarray, full: int) -> np.ndarray:
    """Resizes an array along an axis, by linear interpolation between the centres of its elements.

    Args:
        score_K: array with three axes.
        axis: the axis.
        line_L: indices of the lines of the result to compute.
        full: length of the axis in the complete result.
    """
    length = score_K.shape[axis]
    if full == length:
        return np.take(score_K, line_L, axis)
    # As MXNet's BilinearResize2D with align_corners=False, by which `mxtrain predict` enlarges.
    position_L = np.clip((line_L + 0.5) * (length / full) - 0.5, 0, length - 1).astype(np.float32)
    low = np.floor(position_L).astype(np.int64)
    weight = (position_L - low).reshape([-1 if k == axis else 1 for k in range(3)])
    below, above = (np.take(score_K, index, axis) for index in (low, np.minimum(low + 1, length - 1)))
    return below + (above - below) * weight


def _segmentation_row(signature: Dict[str, Any], class_hw: np.ndarray) -> Dict[str, Any]:
    """Returns the row that `mxtrain predict` writes: the size and the share of each class; and the mask as a PNG
    file."""
    names = signature["class_names"]
    shares = class_shares(class_hw, names)
    mask = mask_png(class_hw, signature["signature"].get("mask_values") or range(len(names)))
    return {"height": class_hw.shape[0], "width": class_hw.shape[1], "shares": shares, "mask": mask}


def _pose_row(
    signature: Dict[str, Any], outputs: Dict[str, np.ndarray], prepared: PreparedImage, crop: Crop
) -> Dict[str, Any]:
    """Returns the key points of the one object in the image, with its box, which is the whole image."""
    (height, width), (full_height, full_width) = prepared.resized, prepared.size
    point_J3 = find_maxima(outputs["output"][0], (height, width))
    point_J2 = point_J3[:, :2] @ crop.back_23[:, :2].T + crop.back_23[:, 2]
    return {
        "score": round(float(point_J3[:, 2].mean()), 6),
        "box": [0.0, 0.0, float(full_width), float(full_height)],
        "key_points": {
            name: [round(float(x), 2), round(float(y), 2), round(float(score), 6)]
            for name, (x, y), score in zip(signature["class_names"], point_J2, point_J3[:, 2])
        },
    }


def find_maxima(map_Jhw: np.ndarray, size: Tuple[int, int]) -> np.ndarray:
    """Finds the maximum of each heat map, as `HeatMaps.decode` does. Returns x and y in pixels of the network's input,
    and the value there, (J, 3).

    Args:
        map_Jhw: heat maps.
        size: (height, width) of the network's input, in pixels.
    """
    count, lines, columns = map_Jhw.shape
    maximum_J3 = np.zeros((count, 3))
    for row, map_hw in zip(maximum_J3, map_Jhw):
        line, column = divmod(int(map_hw.argmax()), columns)
        x, y = float(column), float(line)
        if 0 < column < columns - 1:
            x += SHIFT * np.sign(map_hw[line, column + 1] - map_hw[line, column - 1])
        if 0 < line < lines - 1:
            y += SHIFT * np.sign(map_hw[line + 1, column] - map_hw[line - 1, column])
        row[:] = x * size[1] / columns + 0.5, y * size[0] / lines + 0.5, map_hw[line, column]
    return maximum_J3
