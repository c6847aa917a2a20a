"""Object-detection task: predicts a class, a score and a box for each object.

Legend: B batch, M boxes of an image, N detections, D columns of `boxes.Column`.
"""

from __future__ import annotations

import io
from dataclasses import replace
from typing import TYPE_CHECKING, Callable, ClassVar, Dict, Iterable, Iterator, List, Mapping, Optional, Sequence, Tuple

from mxtrain.data.loading.randomness import uniform_rows
from mxtrain.errors import ConfigError
from mxtrain.task.fit import title_of
from mxtrain.task.prediction_format import PredictionFormat
from mxtrain.task.spec import Report, Task
from mxtrain.task.task_export import TaskExport
from mxtrain.types import Artifact, Figure, Fraction, shapes_of
from mxtrain.types.kinds import Takes
from mxtrain.vision.detection.boxed_files import BoxedFiles
from mxtrain.vision.detection.boxes import NUM_COLUMNS
from mxtrain.vision.detection.coco_results import as_list, coco_ids
from mxtrain.vision.detection.heads.base import Detector
from mxtrain.vision.detection.losses import DetectionLoss
from mxtrain.vision.detection.merged_variants import VariantMerger, decode_outputs
from mxtrain.vision.detection.signature import BoxSignature
from mxtrain.vision.detection.tiled_detections import TiledDetections
from mxtrain.vision.draws import VisionDraw
from mxtrain.vision.kinds import Boxes

if TYPE_CHECKING:
    import numpy as np
    from mxnet.ndarray import NDArray

    from mxtrain.config.parts import RunParts
    from mxtrain.data.loading.loader import Collate
    from mxtrain.data.loading.samples import Encode
    from mxtrain.data.signature import Signature
    from mxtrain.data.spec import BaseDataset, Samples
    from mxtrain.engine.predictions import Decode
    from mxtrain.parallel.base import Strategy
    from mxtrain.task.evaluated_sample import EvaluatedSample
    from mxtrain.task.explained import Explained
    from mxtrain.task.merging import MergeOutputs
    from mxtrain.types import Batch, Shape, Shapes
    from mxtrain.types.annotations import Array, Json, JsonObject, LossBlock, OperatorModule
    from mxtrain.vision.detection.heads.base import BoxCoding, Draws
    from mxtrain.vision.images.variants import ImageVariant

TRACED_BOXES = 16
"""Number of true boxes per image with which a network is traced."""


class Detection(Task):
    """Object detection. The `BoxCoding` of the network decodes its outputs.

    Targets are boxes (B, M, D), and the arrays that the coding encodes them to. Predictions are (N, 6) for each
    image, highest score first: class, score, left, top, right, bottom, in pixels of the original image. Rows of class
    -1 are padding.
    """

    name: ClassVar[str] = "detection"
    takes: ClassVar[Takes] = Takes(Boxes)

    score_threshold: Fraction = 0.3
    """Smallest score of detections in figures and predictions; metrics use all detections."""

    def check(self, description: RunParts) -> None:
        super().check(description)
        model, loss = description.model, description.loss
        if not isinstance(model, Detector) or not isinstance(loss, DetectionLoss):
            raise ConfigError(
                f"task={self.name}: a model and a loss of your own must define how boxes are encoded as outputs: "
                "derive them from mxtrain.vision.detection.heads.base.Detector and "
                "mxtrain.vision.detection.losses.DetectionLoss."
            )
        if loss.option != model.loss_option:
            raise ConfigError(
                f"loss: {type(loss).__name__} does not fit what {type(model).__name__} returns. Type "
                f"loss={model.loss_option}."
            )
        loss.require_unsmoothed()
        dataset = description.dataset
        model.require_sizes(dataset.image_sizes if isinstance(dataset, BoxedFiles) else ())
        mixup = dataset.augment.mixup if isinstance(dataset, BoxedFiles) else 0
        if mixup and not model.weighs_boxes:
            raise ConfigError(
                f"dataset.augment.mixup={mixup}: boxes of blended images are weighted by their share, which "
                f"{type(model).__name__} does not support (weighs_boxes). Type dataset.augment.mixup=0."
            )

    def output_shapes(self, description: RunParts, signature: Signature) -> List[Shape]:
        return list(self._coding(description, signature).output_shapes)

    def _coding(self, description: RunParts, signature: Signature) -> BoxCoding:
        """Returns the box coding of the network."""
        assert isinstance(description.model, Detector)
        return description.model.box_coding(self.num_classes(signature), signature.shape)  # type: ignore[arg-type]

    def build_encode(self, description: RunParts, signature: Signature, training: bool) -> Encode:
        encode = self._coding(description, signature).encode
        return lambda box_BMD: (box_BMD, *encode(box_BMD))

    def training_shapes(self, description: RunParts, signature: Signature) -> Shapes:
        draws = self._draws(description, signature)
        shape = shapes_of(signature.shape)[0]
        if draws is None:
            return shape
        # The number of true boxes varies with the data; no parameter depends on it.
        return shape, (TRACED_BOXES, NUM_COLUMNS), (draws.regions + TRACED_BOXES,)

    def _draws(self, description: RunParts, signature: Signature) -> Optional[Draws]:
        """Returns the number of random numbers of the network; see `Detector.draws`."""
        assert isinstance(description.model, Detector)
        return description.model.draws(shapes_of(signature.shape)[0])

    def build_collate(self, description: RunParts, signature: Signature, training: bool) -> Optional[Collate]:
        """Adds true boxes and random numbers to the inputs and targets of networks that sample anchors or regions."""
        draws = self._draws(description, signature)
        if draws is None:
            return None
        seed = description.trainer.seed

        def collate(batch: Batch, epoch: int) -> Batch:
            from mxtrain.data.loading.placing import copy_to

            device, box_BMD = batch.inputs[0].context, batch.targets[0]
            counts = (draws.targets, draws.regions + box_BMD.shape[1])
            assert batch.index_B is not None
            target_draws, region_draws = (
                copy_to(uniform_rows(seed, epoch if training else 0, batch.index_B, draw, count), device)
                for draw, count in zip((VisionDraw.TARGET_SAMPLE, VisionDraw.REGION_SAMPLE), counts)
            )
            # Masks are only used by losses, not by the network.
            plain_BMD = box_BMD if box_BMD.shape[2] == NUM_COLUMNS else box_BMD[:, :, :NUM_COLUMNS]
            inputs = (*batch.inputs, plain_BMD, region_draws) if training else batch.inputs
            return replace(batch, inputs=inputs, targets=(*batch.targets, target_draws))

        return collate

    def check_explained(self, description: RunParts) -> None:
        super().check_explained(description)
        model = description.model
        if isinstance(model, Detector) and not model.explains:
            raise ConfigError(
                f"explain: the regions that {type(model).__name__} looks at change with the image, so "
                "the score of one has no gradient that tells which pixels decided. Leave explain out, or train another "
                "network, e.g. model=ssd."
            )

    def build_loss(self, description: RunParts, signature: Signature, training: bool) -> LossBlock:
        assert isinstance(description.loss, DetectionLoss)
        shapes = self.output_shapes(description, signature)
        return description.loss.build_for(self.num_classes(signature), shapes)

    def build_decode(self, description: RunParts, signature: Signature, strategy: Optional[Strategy] = None) -> Decode:
        from mxtrain.engine.backend import nd

        coding = self._coding(description, signature)

        def decode(outputs: Tuple[NDArray, ...], batch: Batch) -> NDArray:
            detection_BN6 = decode_outputs(coding, outputs)
            if batch.meta is None:
                return detection_BN6
            # With masks meta is an array of objects, whose last column holds codes.
            meta_B4 = batch.meta[:, :4].astype("float64")
            size_B2, fitted_B2 = meta_B4[:, 1::-1], meta_B4[:, :1:-1]  # (width, height), as x before y in boxes
            scale_B2 = fitted_B2 / size_B2
            device = detection_BN6.context
            scale_B14, limit_B14 = (
                nd.array(values_B2[:, [0, 1, 0, 1]], ctx=device).expand_dims(1) for values_B2 in (scale_B2, size_B2)
            )
            edge_BN4 = nd.broadcast_div(detection_BN6.slice_axis(axis=2, begin=2, end=6), scale_B14)
            return self.clip_to_image(detection_BN6, edge_BN4, nd.broadcast_minimum(nd.relu(edge_BN4), limit_B14))

        return decode

    def merge_variants(
        self, description: RunParts, signature: Signature, variants: Sequence[ImageVariant]
    ) -> MergeOutputs:
        """Returns the function that merges detections; the loss is that of the unchanged images. See
        `MergesVariants`."""
        assert isinstance(description.model, Detector)
        return VariantMerger(description.model, self.num_classes(signature), signature, variants)

    def merge_tiles(self, description: RunParts, signature: Signature, blend: Optional[str]) -> TiledDetections:
        """Returns the functions that merge the detections in tiles; see `MergesTiles`.

        Raises:
            ConfigError: `blend` is given.
        """
        if blend is not None:
            raise ConfigError(
                f"tile_blend={blend}: it averages the pixels of overlapping tiles, and {title_of(self)} merges boxes. "
                "Leave it out."
            )
        return self.tiled_detections(lambda: self.build_decode(description, signature))

    def tiled_detections(self, build_decode: Callable[[], Decode]) -> TiledDetections:
        """Returns the functions that merge the detections in tiles.

        Args:
            build_decode: see `TiledDetections`.
        """
        return TiledDetections(build_decode)

    def clip_to_image(self, detection_BNR: NDArray, edge_BN4: NDArray, inside_BN4: NDArray) -> NDArray:
        """Clips detections to their image.

        Args:
            detection_BNR: detections of the network.
            edge_BN4: their boxes in pixels of the original image.
            inside_BN4: these boxes, clipped to the image.
        """
        from mxtrain.engine.backend import nd

        return nd.concat(detection_BNR.slice_axis(axis=2, begin=0, end=2), inside_BN4, dim=2)

    def result(self, signature: Signature, source: Samples, sample: EvaluatedSample) -> Mapping[str, Json]:
        """Returns the numbers of objects, of detections above the score threshold, of pairs of both with the same class
        and an intersection over union of at least 0.5, of missed objects and of false positives. Difficult objects
        do not count."""
        import numpy as np

        from mxtrain.vision.detection.boxes import Flag
        from mxtrain.vision.detection.metrics import CollectedBoxes, true_boxes, voc_matches

        collected = CollectedBoxes()
        shown_N6 = self.shown(sample.prediction)[:, :6]
        collected.add_image(0, true_boxes(sample.targets[0], sample.meta), shown_N6)
        _, true_G8, detection_N8 = collected.boxes()
        num_objects = int(((true_G8[:, 2].astype(int) & (Flag.DIFFICULT | Flag.CROWD)) == 0).sum())
        matches = [
            voc_matches(true_G8[true_G8[:, 1] == number], detection_N8[detection_N8[:, 1] == number], 0.5)[0]
            for number in np.unique(detection_N8[:, 1])
        ]
        found, matched = sum(map(len, matches)), int(sum(is_hit.sum() for is_hit in matches))
        return {
            "objects": num_objects,
            "found": found,
            "matched": matched,
            "missed": num_objects - matched,
            "false_positives": found - matched,
        }

    def row(self, signature: Signature, prediction: np.ndarray, top_k: int) -> Mapping[str, Json]:
        """Returns the detections, highest score first: class, score, box."""
        return {
            "found": [
                {
                    "class": signature.class_names[int(row[0])],
                    "score": round(row[1], 6),
                    "box": [round(edge, 2) for edge in row[2:6]],
                }
                for row in self.shown(prediction)[:, :6].tolist()
            ]
        }

    def shown(self, prediction: np.ndarray) -> np.ndarray:
        """Returns the detections above the score threshold whose box has an area after rounding to 0.01 pixels."""
        left, top, right, bottom = prediction[:, 2:6].round(2).T
        # The rounded edges decide, because they are what a row shows.
        has_area = (right > left) & (bottom > top)
        return prediction[(prediction[:, 0] >= 0) & (prediction[:, 1] >= self.score_threshold) & has_area]

    def coco_location(self, detection: JsonObject) -> JsonObject:
        """Returns the location of an object in the format of COCO results.

        Args:
            detection: an element of the list that `row` returns.
        """
        left, top, right, bottom = detection["box"]
        return {"bbox": [left, top, round(right - left, 2), round(bottom - top, 2)]}

    def explained(
        self, description: RunParts, signature: Signature, outputs: Tuple[NDArray, ...], batch: Batch
    ) -> Explained:
        """Explains the logit of the highest-scoring detection of each image."""
        import numpy as np

        from mxtrain.engine.backend import nd
        from mxtrain.task.explained import Explained
        from mxtrain.vision.detection.metrics import best_matches

        coding, names = self._coding(description, signature), signature.class_names
        best_B = coding.scores(outputs).argmax(axis=1)
        first_B6 = coding.decode(outputs).slice_axis(axis=1, begin=0, end=1).squeeze(axis=1).asnumpy()[:, :6]
        class_B = first_B6[:, 0].astype(int)
        true_B = best_matches(first_B6[:, 2:], batch.targets[0].asnumpy())
        _, height, width = shapes_of(signature.shape)[0]
        x_W, y_H = np.arange(width) + 0.5, np.arange(height) + 0.5
        left_B, top_B, right_B, bottom_B = first_B6[:, 2:].T[..., None]
        inside_BW, inside_BH = (x_W >= left_B) & (x_W < right_B), (y_H >= top_B) & (y_H < bottom_B)
        return Explained(
            lambda outputs: nd.pick(coding.scores(outputs), best_B),
            ["nothing" if number < 0 else names[number] for number in true_B],
            ["" if number < 0 else names[number] for number in class_B],
            first_B6[:, 1],
            (class_B == true_B) & (class_B >= 0),
            inside_BH[:, :, None] & inside_BW[:, None, :],
            is_of_one_place=True,
        )

    def can_show(self, description: RunParts) -> bool:
        return True

    def show(
        self, signature: Signature, source: Samples, predictions: Sequence[np.ndarray], targets: Sequence[np.ndarray]
    ) -> List[Artifact]:
        from mxtrain.vision.detection.box_figure import boxed_samples, draw_gallery

        samples = boxed_samples(source, range(len(source)), [self.shown(prediction) for prediction in predictions])
        return [Figure("samples", lambda max_samples: draw_gallery(samples[:max_samples], signature.class_names))]

    def build_report(self, description: RunParts, signature: Signature, source: Samples) -> Report:
        from mxtrain.vision.detection.detection_report import DetectionReport

        return DetectionReport(self, self.build_decode(description, signature), signature, source)

    def prediction_format(self) -> PredictionFormat:
        return DetectionFormat(self)

    def export_form(self) -> TaskExport:
        return DetectionExport(self)


class DetectionFormat(PredictionFormat):
    """Rows and files of the predictions of `Detection`."""

    task: Detection

    writes: ClassVar[str] = "picture"
    writes_by_default: ClassVar[bool] = False
    formats: ClassVar[Tuple[str, ...]] = ("coco",)
    list_field: ClassVar[Tuple[str, str]] = ("found", "boxes")

    def format_count(self, count: int) -> str:
        return (
            f"{super().format_count(count)} with a score of task.score_threshold={self.task.score_threshold:g} or more"
        )

    def cells(self, row: JsonObject) -> Dict[str, Json]:
        """Returns the number of detections, and the one with the highest score."""
        first = row["found"][0] if row["found"] else {"class": "", "score": "", "box": [""] * 4}
        edges = dict(zip(("left", "top", "right", "bottom"), first["box"]))
        return {"count": len(row["found"]), "class": first["class"], "score": first["score"], **edges}

    def sample_ids(self, form: str, locations: Sequence[str], dataset: BaseDataset) -> Mapping[str, Json]:
        """Returns image ids for COCO results: from the dataset's annotations, else the number in the file name, or the
        name."""
        return coco_ids(locations, dataset) if form == "coco" else {}

    def write_as(self, form: str, signature: Signature, rows: Iterable[JsonObject]) -> Iterator[str]:
        """Yields COCO's format of results: a list of boxes [left, top, width, height]."""
        signature = BoxSignature.cast(signature)
        ids = dict(zip(signature.class_names, signature.category_ids or range(len(signature.class_names))))

        return as_list(
            {
                "image_id": row["sample_id"],
                "category_id": ids[detection["class"]],
                **self.task.coco_location(detection),
                "score": detection["score"],
            }
            for row in rows
            for detection in row["found"]
        )

    def encode_file(self, signature: Signature, prediction: np.ndarray, source: Samples, index: int) -> bytes:
        """Returns the image with its detections."""
        from mxtrain.vision.detection.box_figure import boxed_samples, draw_boxes

        (sample,) = boxed_samples(source, [index], [self.task.shown(prediction)])
        content = io.BytesIO()
        draw_boxes(sample, signature.class_names).save(content, "PNG")
        return content.getvalue()


class DetectionExport(TaskExport):
    """Export of networks of `Detection`."""

    task: Detection

    any_size: ClassVar[bool] = False

    def outputs(
        self, F: OperatorModule, outputs: Sequence[Array], description: RunParts, signature: Signature
    ) -> Dict[str, Array]:
        """Returns detections (B, N, 6) in pixels of the network's input, see `BoxCoding.decode`."""
        return {"detections": self.task._coding(description, signature).decode(outputs, F)}
