"""Pose-estimation task: predicts the key points of an object that is cropped from an image, such as a person's joints.

Legend: B batch, J key points, H height, W width of the network's input; h, w cells of a heat map.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, ClassVar, Dict, Iterable, Iterator, List, Mapping, Optional, Sequence, Tuple

from mxtrain.errors import ConfigError
from mxtrain.task.prediction_format import PredictionFormat
from mxtrain.task.spec import Report, Task
from mxtrain.types import Artifact, Figure, Fraction, PositiveFloat, shapes_of
from mxtrain.types.kinds import Takes
from mxtrain.vision.detection.coco_results import as_list, coco_ids
from mxtrain.vision.detection.signature import BoxSignature
from mxtrain.vision.images.variants import FLIP, require_variants
from mxtrain.vision.kinds import KeyPoints
from mxtrain.vision.pose.heat_maps import HeatMaps
from mxtrain.vision.pose.key_points import KeypointMeta, known
from mxtrain.vision.pose.losses import HeatmapL2
from mxtrain.vision.pose.metrics import OksAP, Pose
from mxtrain.vision.pose.model import PoseNetwork
from mxtrain.vision.pose.signature import KeyPointSignature

if TYPE_CHECKING:
    import numpy as np
    from mxnet.ndarray import NDArray

    from mxtrain.config.parts import RunParts
    from mxtrain.data.loading.samples import Encode
    from mxtrain.data.signature import Signature
    from mxtrain.data.spec import BaseDataset, Samples
    from mxtrain.engine.predictions import Decode
    from mxtrain.metric.meter import LossWeights, Meter
    from mxtrain.parallel.base import Strategy
    from mxtrain.task.evaluated_sample import EvaluatedSample
    from mxtrain.task.explained import Explained
    from mxtrain.task.merging import MergeOutputs
    from mxtrain.types import Batch, Shape
    from mxtrain.types.annotations import Json, JsonObject, LossBlock
    from mxtrain.vision.images.variants import ImageVariant

MAX_DISTANCE = 0.1
"""Largest distance of a correct key point from the true one in explanations, relative to the longer side of the
crop."""


class PoseEstimation(Task):
    """Pose estimation.

    Outputs are heat maps (B, J, h, w). Targets are key points (B, J, 3), and the target heat maps and weights that
    encode them. Predictions are (J + 2, 3) for each object, in pixels of its image: x, y and value of the maximum for
    each key point; left, top and score of the object; right, bottom and 0. See `Pose`.
    """

    name: ClassVar[str] = "pose_estimation"
    takes: ClassVar[Takes] = Takes(KeyPoints)

    sigma: PositiveFloat = 2.0
    """Standard deviation of the Gaussian at a key point in target heat maps, in cells."""
    score_threshold: Fraction = 0.2
    """Minimum score of key points that are drawn; predictions and metrics use all key points."""

    def check(self, description: RunParts) -> None:
        super().check(description)
        model, loss = description.model, description.loss
        if not isinstance(model, PoseNetwork) or not isinstance(loss, HeatmapL2):
            raise ConfigError(
                "task=pose_estimation: a model of your own must define the size of its heat maps, and a loss of your "
                "own must accept heat maps: derive them from mxtrain.vision.pose.model.PoseNetwork and "
                "mxtrain.vision.pose.losses.HeatmapL2."
            )
        loss.require_unsmoothed()

    def output_shapes(self, description: RunParts, signature: Signature) -> List[Shape]:
        return [(self.num_classes(signature), *self._map_size(description, signature))]

    def _map_size(self, description: RunParts, signature: Signature) -> Tuple[int, int]:
        assert isinstance(description.model, PoseNetwork)
        return description.model.map_size(shapes_of(signature.shape)[0])

    def _maps(self, description: RunParts, signature: Signature) -> HeatMaps:
        return HeatMaps(self._map_size(description, signature), shapes_of(signature.shape)[0][1:], self.sigma)

    def build_encode(self, description: RunParts, signature: Signature, training: bool) -> Encode:
        maps = self._maps(description, signature)
        return lambda point_BJ3: (point_BJ3, *maps.encode(point_BJ3))

    def build_meter(self, description: RunParts, signature: Signature, weights: LossWeights, training: bool) -> Meter:
        """Builds the meter; see `Task.build_meter`.

        Raises:
            ConfigError: a metric has another number of sigmas than there are key points.
        """
        count = self.num_classes(signature)
        for name, metric in description.metric.items():
            if isinstance(metric, OksAP) and len(metric.sigmas) not in (0, 1, count):
                raise ConfigError(
                    f"metric.{name}.sigmas has {len(metric.sigmas)} numbers, and there are {count} key points: "
                    f"{', '.join(signature.class_names)}. Type one for all, or one for each, or [] for the dataset's."
                )
        return super().build_meter(description, signature, weights, training)

    def build_loss(self, description: RunParts, signature: Signature, training: bool) -> LossBlock:
        return description.loss.build(self.num_classes(signature), training)

    def build_decode(self, description: RunParts, signature: Signature, strategy: Optional[Strategy] = None) -> Decode:
        import numpy as np

        from mxtrain.engine.backend import nd

        maps, (_, height, width) = self._maps(description, signature), shapes_of(signature.shape)[0]

        def decode(outputs: Tuple[NDArray, ...], batch: Batch) -> NDArray:
            point_BJ3 = maps.decode(outputs[0])
            count, device = len(point_BJ3), point_BJ3.context

            def copy(columns: np.ndarray) -> NDArray:
                """Copies metadata to the device."""
                return nd.array(columns, ctx=device, dtype="float32")

            score_B1 = point_BJ3[:, :, 2].mean(axis=1, keepdims=True)
            if batch.meta is None:
                box_B4 = nd.tile(copy(np.array([[0, 0, width, height]])), (count, 1))
            else:
                box_B4 = copy(batch.meta[:, KeypointMeta.LEFT : KeypointMeta.AREA])
                score_B1 = score_B1 * copy(batch.meta[:, KeypointMeta.SCORE, None])
                back_B6 = copy(batch.meta[:, KeypointMeta.MATRIX : KeypointMeta.LEFT])
                point_BJ3 = _moved_back(point_BJ3, back_B6)
            object_B6 = nd.concat(box_B4[:, :2], score_B1, box_B4[:, 2:], nd.zeros_like(score_B1), dim=1)
            return nd.concat(point_BJ3, object_B6.reshape((count, 2, 3)), dim=1)

        return decode

    def merge_variants(
        self, description: RunParts, signature: Signature, variants: Sequence[ImageVariant]
    ) -> MergeOutputs:
        """Returns the function that averages heat maps; left and right key points of mirrored images change places. See
        `MergesVariants`.

        A mirrored map is moved by one cell, as in SimplePose: cells are pixels m * stride, which a mirror moves to
        pixels (m + 1) * stride - 1.
        """
        require_variants(variants, [FLIP], "heat maps are averaged for an image and its mirror image only")
        is_moved = self._map_size(description, signature)[1] < shapes_of(signature.shape)[0][2]
        order_J = KeyPointSignature.cast(signature).key_points.order(self.num_classes(signature)).tolist()

        def merge(outputs: Sequence[Tuple[NDArray, ...]]) -> Tuple[NDArray, ...]:
            from mxtrain.engine.backend import nd

            maps = []
            for variant, (map_BJhw, *_) in zip(variants, outputs):
                map_BJhw = map_BJhw.astype("float32")
                if variant.is_flipped:
                    back_BJhw = variant.mirrored(map_BJhw).take(nd.array(order_J, ctx=map_BJhw.context), axis=1)
                    first_BJh1, others_BJhw = (
                        back_BJhw.slice_axis(axis=3, begin=0, end=end) for end in (1, back_BJhw.shape[3] - 1)
                    )
                    map_BJhw = nd.concat(first_BJh1, others_BJhw, dim=3) if is_moved else back_BJhw
                maps.append(map_BJhw)
            return (nd.stack(*maps).mean(axis=0), *outputs[0][1:])

        return merge

    def result(self, signature: Signature, source: Samples, sample: EvaluatedSample) -> Mapping[str, Json]:
        """Returns the score, the number of known key points, and their mean error relative to the longer side of the
        box."""
        import numpy as np

        from mxtrain.vision.pose.metrics import CollectedPoses

        collected = CollectedPoses()
        collected.update(np.array([0]), [sample.prediction], sample.targets[0][None], sample.meta[None])
        poses = collected.poses()
        error = poses.error_NJ[poses.known_NJ]
        return {
            "score": float(poses.score_N[0]),
            "key_points": len(error),
            "mean_error": float(error.mean()) if len(error) else 0.0,
        }

    def row(self, signature: Signature, prediction: np.ndarray, top_k: int) -> Mapping[str, Json]:
        """Returns box and score of the object, and x, y and score of each key point by name."""
        pose = Pose.from_prediction(prediction)
        return {
            "score": round(pose.score, 6),
            "box": [round(edge, 2) for edge in pose.box_4.tolist()],
            "key_points": {
                name: [round(x, 2), round(y, 2), round(score, 6)]
                for name, (x, y, score) in zip(signature.class_names, pose.point_J3.tolist())
            },
        }

    def can_show(self, description: RunParts) -> bool:
        return True

    def show(
        self, signature: Signature, source: Samples, predictions: Sequence[np.ndarray], targets: Sequence[np.ndarray]
    ) -> List[Artifact]:
        from mxtrain.vision.pose.pose_figure import draw_gallery, posed_samples

        poses = [Pose.from_prediction(prediction) for prediction in predictions]
        samples = posed_samples(source, range(len(source)), [pose.point_J3 for pose in poses])
        return [
            Figure("samples", lambda max_samples: draw_gallery(samples[:max_samples], signature, self.score_threshold))
        ]

    def build_report(self, description: RunParts, signature: Signature, source: Samples) -> Report:
        from mxtrain.vision.pose.report import PoseReport

        return PoseReport(self, self.build_decode(description, signature), description, signature, source)

    def explained(
        self, description: RunParts, signature: Signature, outputs: Tuple[NDArray, ...], batch: Batch
    ) -> Explained:
        """Explains the score of the highest-scoring key point of each object. The prediction is correct if the nearest
        true key point has the same name, and is at most `MAX_DISTANCE` away."""
        import numpy as np

        from mxtrain.engine.backend import nd
        from mxtrain.task.explained import Explained

        names, maps = signature.class_names, self._maps(description, signature)
        point_BJ3 = maps.decode(outputs[0]).asnumpy()
        best_B = point_BJ3[..., 2].argmax(axis=1)
        index_B = outputs[0].astype("float32").reshape((0, -1)).argmax(axis=1)
        row_B = np.arange(len(best_B))
        point_B3 = point_BJ3[row_B, best_B]
        true_BJ3 = batch.targets[0].asnumpy()
        distance_BJ = np.linalg.norm(true_BJ3[..., :2] - point_B3[:, None, :2], axis=-1)
        distance_BJ[~known(true_BJ3)] = np.inf
        _, height, width = shapes_of(signature.shape)[0]
        nearest_B = distance_BJ.argmin(axis=1)
        is_near_B = distance_BJ.min(axis=1) <= MAX_DISTANCE * max(height, width)
        return Explained(
            lambda outputs: nd.pick(outputs[0].astype("float32").reshape((0, -1)), index_B),
            [names[number] if is_near else "" for number, is_near in zip(nearest_B, is_near_B)],
            [names[number] for number in best_B],
            point_B3[:, 2],
            (nearest_B == best_B) & is_near_B,
            is_of_one_place=True,
        )

    def prediction_format(self) -> PredictionFormat:
        return PoseEstimationFormat(self)


class PoseEstimationFormat(PredictionFormat):
    """Rows and files of the predictions of `PoseEstimation`."""

    task: PoseEstimation

    writes: ClassVar[str] = "picture"
    writes_by_default: ClassVar[bool] = False
    formats: ClassVar[Tuple[str, ...]] = ("coco",)

    def cells(self, row: JsonObject) -> Dict[str, Json]:
        """Returns the cells of a table: score, edges, and three columns for each key point."""
        cells: Dict[str, Json] = {key: value for key, value in row.items() if key not in ("box", "key_points")}
        cells.update(zip(("left", "top", "right", "bottom"), row["box"]))
        for name, point in row["key_points"].items():
            cells.update(zip((f"{name}_x", f"{name}_y", f"{name}_score"), point))
        return cells

    def sample_ids(self, form: str, locations: Sequence[str], dataset: BaseDataset) -> Mapping[str, Json]:
        """Returns image ids for COCO results: from the dataset's annotations, else the number in the file name, or the
        name."""
        return coco_ids(locations, dataset) if form == "coco" else {}

    def write_as(self, form: str, signature: Signature, rows: Iterable[JsonObject]) -> Iterator[str]:
        """Yields COCO's format of results: a list of key points [x, y, score, ...] in pixels, from 0."""
        (category_id,) = BoxSignature.cast(signature).category_ids or (1,)

        def result(row: JsonObject) -> JsonObject:
            # COCO's places are indices of pixels, and ours begin at the edge of the image.
            points = [[round(x - 0.5, 2), round(y - 0.5, 2), score] for x, y, score in row["key_points"].values()]
            return {
                "image_id": row["sample_id"],
                "category_id": category_id,
                "keypoints": [number for point in points for number in point],
                "score": row["score"],
            }

        return as_list(map(result, rows))

    def encode_file(self, signature: Signature, prediction: np.ndarray, source: Samples, index: int) -> bytes:
        """Returns the image with the key points of one object."""
        from mxtrain.vision.pose.pose_figure import draw_on_image

        content = io.BytesIO()
        pose = Pose.from_prediction(prediction)
        draw_on_image(source, index, pose, signature, self.task.score_threshold).save(content, "PNG")
        return content.getvalue()


def _moved_back(point_BJ3: NDArray, back_B6: NDArray) -> NDArray:
    """Converts points (B, J, 3) from pixels of the network's input to pixels of the image.

    Args:
        point_BJ3: x, y, score.
        back_B6: matrices (2, 3) from the network's input to the image, row by row.
    """
    from mxtrain.engine.backend import nd

    x_BJ, y_BJ, score_BJ = (part.squeeze(axis=2) for part in point_BJ3.split(3, axis=2))
    moved = []
    for line in (0, 1):
        factor_x_B1, factor_y_B1, shift_B1 = (
            back_B6.slice_axis(axis=1, begin=3 * line + column, end=3 * line + column + 1) for column in range(3)
        )
        linear_BJ = nd.broadcast_mul(x_BJ, factor_x_B1) + nd.broadcast_mul(y_BJ, factor_y_B1)
        moved.append(nd.broadcast_add(linear_BJ, shift_B1))
    return nd.stack(*moved, score_BJ, axis=2)
