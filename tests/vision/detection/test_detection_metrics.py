"""Average precision of boxes against GluonCV's metrics and COCO's own tool, on the same random detections."""

from __future__ import annotations

import contextlib
import io
import json
import warnings
from pathlib import Path
from typing import Any, List, Tuple

import numpy as np
import pytest
from in_threads import Rendezvous, ThreadStore

from mxtrain.errors import ConfigError
from mxtrain.kvstore.store import Store
from mxtrain.kvstore.world import World
from mxtrain.metric.host import all_gather
from mxtrain.vision.detection.boxes import Flag, ResizeTransform, padded, rows_of
from mxtrain.vision.detection.metrics import CocoAP, CocoAR, CollectedBoxes, VocAP

NUM_IMAGES, NUM_CLASSES = 60, 5
Scene = Tuple[np.ndarray, np.ndarray]


def scenes(num_found: int = 1000) -> List[Scene]:
    """(true boxes (G, D), detections (N, 6)) of images, some without either; whole pixels, as VOC counts them."""
    rng, made = np.random.RandomState(0), []
    for image in range(NUM_IMAGES):
        count = 0 if image % 11 == 3 else rng.randint(1, 6)
        low = rng.randint(0, 150, (count, 2))
        true = rows_of(np.concatenate([low, low + rng.randint(8, 120, (count, 2))], axis=1), rng.randint(0, 4, count))
        true[:, 5] = rng.rand(count) < 0.1
        number = num_found // NUM_IMAGES + (image < num_found % NUM_IMAGES)
        near = true[rng.randint(0, max(count, 1), number)] if count else np.zeros((number, 7))
        edges = near[:, :4] + rng.randint(-12, 13, (number, 4))
        far = rng.rand(number) < 0.4
        edges[far, :2] = rng.randint(0, 150, (far.sum(), 2))
        edges[:, 2:] = np.maximum(edges[:, 2:], edges[:, :2] + 1)
        number_of = np.where(rng.rand(number) < 0.2, rng.randint(0, NUM_CLASSES, number), near[:, 4])
        score = rng.permutation(number) / number + rng.rand(number) / 1e3
        made.append((true, np.column_stack([number_of, score, edges])))
    return made


SCENES = scenes()


def collected(made: List[Scene]) -> CollectedBoxes:
    boxes = CollectedBoxes()
    for index, (true, found) in enumerate(made):
        boxes.add_image(index, true, found)
    return boxes


@pytest.mark.parametrize("interpolation, name", [("area", "VOCMApMetric"), ("11_point", "VOC07MApMetric")])
def test_voc_ap_equals_gluoncv(interpolation: Any, name: str) -> None:
    """Its boxes hold their last pixel: ours are the same with one pixel less at the right and at the bottom."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from gluoncv.utils.metrics import voc_detection

    metric = getattr(voc_detection, name)(iou_thresh=0.5, class_names=[str(k) for k in range(NUM_CLASSES)])
    for true, found in SCENES:
        inclusive = [one - np.array([0, 0, 1, 1]) for one in (found[:, 2:], true[:, :4])]
        metric.update(
            [inclusive[0][None]],
            [found[None, :, 0]],
            [found[None, :, 1]],
            [inclusive[1][None]],
            [true[None, :, 4]],
            [true[None, :, 5]],
        )
    theirs = metric.get()[1][-1]
    ours = VocAP(interpolation=interpolation).compute(collected(SCENES))
    assert 0.2 < ours < 0.9 and ours == pytest.approx(theirs, abs=1e-6)


def of_pycocotools(made: List[Scene], folder: Path) -> np.ndarray:
    """The twelve figures of COCO's summary, from files as COCO has them."""
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    images = [{"id": number, "file_name": f"{number}.jpg"} for number in range(len(made))]
    annotations, results = [], []
    for image, (true, found) in enumerate(made):
        for left, top, right, bottom, number, flags, area in true.tolist():
            annotations.append(
                {
                    "id": len(annotations) + 1,
                    "image_id": image,
                    "category_id": int(number) + 7,
                    "area": area,
                    "bbox": [left, top, right - left, bottom - top],
                    "iscrowd": int(bool(int(flags) & Flag.CROWD)),
                }
            )
        for number, score, left, top, right, bottom in found.tolist():
            results.append(
                {
                    "image_id": image,
                    "category_id": int(number) + 7,
                    "score": score,
                    "bbox": [left, top, right - left, bottom - top],
                }
            )
    categories = [{"id": number + 7, "name": str(number)} for number in range(NUM_CLASSES)]
    (folder / "truth.json").write_text(
        json.dumps({"images": images, "annotations": annotations, "categories": categories})
    )
    (folder / "found.json").write_text(json.dumps(results))
    with contextlib.redirect_stdout(io.StringIO()):
        truth = COCO(str(folder / "truth.json"))
        evaluation = COCOeval(truth, truth.loadRes(str(folder / "found.json")), "bbox")
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return evaluation.stats


def test_coco_figures_equal_pycocotools(tmp_path: Path) -> None:
    made = [(np.array(true), found) for true, found in SCENES]
    for number, (true, _) in enumerate(made):
        true[:, 5] = np.where(true[:, 5] > 0, float(Flag.CROWD), 0.0)
        true[:, 6] *= 0.5 + (number % 3) / 4  # the area of an object is not always that of its box
    theirs = of_pycocotools(made, tmp_path)
    boxes = collected(made)
    asked: List[Tuple[Any, dict]] = [
        (CocoAP, {}),
        (CocoAP, {"iou": 0.5}),
        (CocoAP, {"iou": 0.75}),
        (CocoAP, {"area": "small"}),
        (CocoAP, {"area": "medium"}),
        (CocoAP, {"area": "large"}),
        (CocoAR, {"max_detections": 1}),
        (CocoAR, {"max_detections": 10}),
        (CocoAR, {}),
        (CocoAR, {"area": "small"}),
        (CocoAR, {"area": "medium"}),
        (CocoAR, {"area": "large"}),
    ]
    ours = [kind(**settings).compute(boxes) for kind, settings in asked]
    np.testing.assert_allclose(ours, theirs, atol=1e-6)
    assert len({kind(**settings).signature for kind, settings in asked}) == 8  # four are of AP and of AR


def test_truth_as_detections_is_perfect_and_images_without_objects_count() -> None:
    perfect = [
        (true[true[:, 5] == 0], np.column_stack([true[:, 4], np.ones(len(true)), true[:, :4]])[true[:, 5] == 0])
        for true, _ in SCENES
    ]
    boxes = collected(perfect)
    assert VocAP().compute(boxes) == CocoAP().compute(boxes) == 1.0
    empty = next(index for index, (true, _) in enumerate(perfect) if not len(true))
    perfect[empty] = (perfect[empty][0], np.array([[0.0, 2.0, 5.0, 5.0, 60.0, 60.0]]))  # the surest of all, and wrong
    boxes = collected(perfect)
    assert VocAP().compute(boxes) < 1.0 and CocoAP().compute(boxes) < 1.0


def test_precision_is_undefined_without_objects() -> None:
    boxes = CollectedBoxes()
    assert np.isnan([VocAP().compute(boxes), CocoAP().compute(boxes), CocoAR().compute(boxes)]).all()
    boxes.add_image(0, np.zeros((0, 7)), np.array([[0.0, 0.9, 5.0, 5.0, 60.0, 60.0]]))  # a false positive
    assert np.isnan([VocAP().compute(boxes), CocoAP().compute(boxes), CocoAR().compute(boxes)]).all()


@pytest.mark.slow
def test_result_does_not_depend_on_the_measuring_worker() -> None:
    """To the bit; an image that two have seen counts once, in the pixels of the image as it is."""
    fitted = ResizeTransform.into(200, 400, (100, 100), "stretch")
    meta = np.array([fitted.row()] * NUM_IMAGES)
    true = padded([one * np.array([0.25, 0.5, 0.25, 0.5, 1, 1, 1]) for one, _ in SCENES], 8)
    found = [found.astype(np.float32) for _, found in SCENES]

    def measured(store: Store, index: np.ndarray) -> List[float]:
        boxes = CollectedBoxes()
        for part in np.array_split(index, 3) if len(index) else ():
            boxes.update(part, [found[number] for number in part], true[part], meta[part])
        all_gather(boxes, store)
        return [VocAP().compute(boxes), CocoAP().compute(boxes)]

    alone = measured(Store(), np.arange(NUM_IMAGES))
    assert alone[0] == pytest.approx(VocAP().compute(collected(SCENES)), abs=1e-6)
    shares = ([*range(40)], [*range(38, 60)], [])
    rendezvous = Rendezvous(3)

    def work(world: World) -> List[float]:
        return measured(ThreadStore(world, rendezvous), np.array(shares[world.rank], int))

    assert rendezvous.run(work) == [alone] * 3


def test_threshold_outside_of_coco_is_refused(describe_run: Any) -> None:
    with pytest.raises(ConfigError, match="COCO has the thresholds 0.5, 0.55"):
        describe_run("task=detection", "metric=[coco_ap,voc_ap]", "metric.coco_ap.iou=0.52")
