"""Base class of pose-estimation datasets: objects with key points, each cropped from its image."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Dict, List, Optional, Sequence, Tuple, Type

import numpy as np

from mxtrain.data.loading.dataset_files import read_text
from mxtrain.data.signature import Signature
from mxtrain.data.spec import Samples, Splits
from mxtrain.errors import DataError
from mxtrain.files.json_text import parse_json
from mxtrain.files.text_lines import split_lines
from mxtrain.types.kinds import Gives, Images
from mxtrain.vision.images.dataset import Dataset
from mxtrain.vision.images.files import BlankForUnreadable, ImageFiles
from mxtrain.vision.images.settings import Decoding
from mxtrain.vision.images.signature import ImageSignature
from mxtrain.vision.images.transforms.chain import Annotations
from mxtrain.vision.kinds import KeyPoints
from mxtrain.vision.pose.key_point_augment import KeyPointAugment
from mxtrain.vision.pose.key_point_images import KeyPointImages, PosedObjects
from mxtrain.vision.pose.key_points import KeyPointAnnotations
from mxtrain.vision.pose.signature import KeyPointSignature, KeyPointSplits

if TYPE_CHECKING:
    from mxtrain.model.spec import Model
    from mxtrain.vision.images.decoding import EncodedImages
    from mxtrain.vision.images.files import Unlabelled

DETECTIONS = ".jsonl"
"""Extension of files with predictions of task=detection."""


class KeyPointDataset(Dataset):
    """Base class of datasets of objects with key points. The network's input is the part of an image around one
    object."""

    gives: ClassVar[Gives] = Gives(Images, KeyPoints)
    signature_class: ClassVar[Type[ImageSignature]] = KeyPointSignature

    augment: KeyPointAugment = KeyPointAugment()  # type: ignore[assignment]  # of its own annotations

    def infer_signature(self, splits: Splits, model: Model) -> Signature:
        splits = KeyPointSplits.cast(splits)
        return KeyPointSignature.extending(
            super().infer_signature(splits, model), category_ids=list(splits.category_ids), key_points=splits.key_points
        )

    def decoded_as(self, decoding: Decoding) -> KeyPointDataset:
        """Returns this dataset with the image size of a decoding."""
        return self.with_decoding(decoding)

    def remark(self, signature: Signature, splits: Splits) -> str:
        return f"the part of an image around each object enters the network as {'x'.join(map(str, signature.shape))}"

    def annotations(self, signature: Signature) -> Annotations:
        signature = KeyPointSignature.cast(signature)
        return KeyPointAnnotations(signature.key_points.order(len(signature.class_names)))

    def loader_options(self, train: bool) -> Dict[str, Any]:
        """Returns the options of the loader. Sources return images in the size of the network's input."""
        return {"keeps_size": True}

    def open_inputs(
        self, names: Sequence[str], signature: Signature, skip_unreadable: bool, unreadable: Dict[int, str]
    ) -> Tuple[Samples, Sequence[str]]:
        """Opens images, each with one object that fills it; or files of detections, with an object for each detected
        box. Arguments as in `BaseDataset.open_inputs`.

        Raises:
            DataError: `names` has images and files of detections, or there is nothing to predict for.
        """
        detections = [name for name in names if Path(name).suffix == DETECTIONS]
        if detections and len(detections) < len(names):
            other = next(name for name in names if name not in detections)
            raise DataError(
                f"'{detections[0]}' names images with boxes, and '{other}' is an image or a folder. Predict for one "
                "of both at a time."
            )
        if not detections:
            return super().open_inputs(names, signature, skip_unreadable, unreadable)
        object_names = KeyPointSignature.cast(signature).key_points.object_names
        files, objects = read_detections(detections, object_names)
        source = self.source_of(ImageFiles(files), signature, objects)
        locations = [files[number] for number in objects.image_N]
        return BlankForUnreadable(source, unreadable) if skip_unreadable else source, locations

    def source_of(
        self, encoded: EncodedImages, signature: Signature, objects: Optional[PosedObjects] = None
    ) -> Unlabelled:
        """Returns a source of objects in images without key points; by default, one object fills each image."""
        signature = KeyPointSignature.cast(signature)
        return KeyPointImages(
            encoded,
            PosedObjects.whole(len(encoded)) if objects is None else objects,
            len(signature.class_names),
            signature.key_points,
            signature.decoding,
            signature.mean,
        )


def read_detections(names: Sequence[str], object_names: Sequence[str]) -> Tuple[List[str], PosedObjects]:
    """Reads files of detections. Returns the images with detections, and the detected objects.

    Args:
        names: files that `predict` of task=detection wrote.
        object_names: classes to use; empty: all.

    Raises:
        DataError: a line has another form, or no box is of these classes.
    """
    index_of: Dict[str, int] = {}
    images: List[int] = []
    boxes: List[List[float]] = []
    scores: List[float] = []
    for name in names:
        for number, line in enumerate(split_lines(read_text(name)), start=1):
            if not line.strip():
                continue
            file, detections = _parse(line, f"'{name}', line {number}")
            for item in detections:
                if not object_names or item["class"] in object_names:
                    images.append(index_of.setdefault(file, len(index_of)))
                    boxes.append([float(edge) for edge in item["box"]])
                    scores.append(float(item["score"]))
    if not boxes:
        of_what = f" of {' or '.join(object_names)}" if object_names else ""
        raise DataError(f"{', '.join(names)}: no box{of_what} was found in any image, so there is nothing to do.")
    return list(index_of), PosedObjects.found(images, np.array(boxes), scores)


def _parse(line: str, location: str) -> Tuple[str, List[Dict[str, Any]]]:
    """Parses a line of a file of detections. Returns the image file and the detections.

    Raises:
        DataError: the line has another form.
    """
    try:
        row = parse_json(line)
        file, detections = row["file"], row["found"]
        for item in detections:
            left, top, right, bottom = item["box"]
            if not isinstance(item["class"], str) or not (-1e9 < left < right < 1e9 and -1e9 < top < bottom < 1e9):
                raise ValueError
            if not 0 <= item["score"] <= 1:
                raise ValueError
        if not isinstance(file, str):
            raise TypeError
    except (ValueError, TypeError, KeyError) as error:
        raise DataError(
            f"{location}: this is no output row of `predict` of task=detection: an object with a file and its "
            'detections, e.g. {"file": "a.jpg", "found": [{"class": "person", "score": 0.9, "box": [1, 2, 30, 40]}]}.'
        ) from error
    return file, detections
