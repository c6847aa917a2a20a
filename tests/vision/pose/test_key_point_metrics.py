"""OKS AP against COCO's own tool and its files, PCK against NumPy, on the same random key points."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path
from typing import Any, List, NamedTuple

import numpy as np
import pytest
from in_threads import Rendezvous, ThreadStore

from mxtrain.errors import ConfigError
from mxtrain.kvstore.store import Store
from mxtrain.metric.host import all_gather
from mxtrain.vision.pose.key_points import PERSON_NAMES, PERSON_SIGMAS, Crop, meta_row
from mxtrain.vision.pose.metrics import PCK, CollectedPoses, OksAP, Pose

J = len(PERSON_NAMES)


class Thing(NamedTuple):
    image: int
    box_4: np.ndarray
    area: float
    true_J3: np.ndarray
    pose: Pose


def objects(count: int = 240) -> List[Thing]:
    """Persons in images of which some have several, near to what is predicted of them or far away."""
    rng, made = np.random.RandomState(0), []
    for number in range(count):
        low = rng.rand(2) * 300
        box_4 = np.concatenate([low, low + 20 + rng.rand(2) * 220])
        true_J3 = np.column_stack([low + rng.rand(J, 2) * (box_4[2:] - low), rng.randint(0, 3, J)])
        true_J3[rng.randint(J), 2] = 2
        true_J3[true_J3[:, 2] == 0] = 0
        spread = rng.choice([0.5, 3.0, 8.0, 40.0])
        found_J3 = np.column_stack([true_J3[:, :2] + rng.randn(J, 2) * spread, rng.rand(J)])
        area = float((box_4[2:] - low).prod() * rng.uniform(0.3, 0.9))
        made.append(Thing(number // 3 * (number % 7 != 0), box_4, area, true_J3, Pose(found_J3, box_4, rng.rand())))
    return made


OBJECTS = objects()


def collected(made: List[Thing], sigmas: Any = PERSON_SIGMAS) -> CollectedPoses:
    poses = CollectedPoses()
    for index, one in enumerate(made):
        poses.add_object(index, one.image, one.box_4, one.area, one.true_J3, one.pose, sigmas)
    return poses


def coco_summary(folder: Path, sigmas: Any = None) -> List[float]:
    """AP, AP50, AP75, AP medium and AP large as pycocotools says them of files that COCO's tools would write."""
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    truth = {
        "images": [{"id": number + 1} for number in sorted({one.image for one in OBJECTS})],
        "categories": [{"id": 1, "name": "person", "keypoints": PERSON_NAMES}],
        "annotations": [
            {
                "id": number,
                "image_id": one.image + 1,
                "category_id": 1,
                "iscrowd": 0,
                "area": one.area,
                "bbox": [*one.box_4[:2], *(one.box_4[2:] - one.box_4[:2])],
                "keypoints": one.true_J3.ravel().tolist(),
                "num_keypoints": int((one.true_J3[:, 2] > 0).sum()),
            }
            for number, one in enumerate(OBJECTS, start=1)
        ],
    }
    results = [
        {
            "image_id": one.image + 1,
            "category_id": 1,
            "keypoints": one.pose.point_J3.ravel().tolist(),
            "score": one.pose.score,
        }
        for one in OBJECTS
    ]
    (folder / "truth.json").write_text(json.dumps(truth))
    (folder / "results.json").write_text(json.dumps(results))
    with contextlib.redirect_stdout(io.StringIO()):
        coco = COCO(str(folder / "truth.json"))
        evaluation = COCOeval(coco, coco.loadRes(str(folder / "results.json")), "keypoints")
        if sigmas is not None:
            evaluation.params.kpt_oks_sigmas = np.array(sigmas)
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return evaluation.stats[:5].tolist()


METRICS = [OksAP(), OksAP(oks=0.5), OksAP(oks=0.75), OksAP(area="medium"), OksAP(area="large")]


def test_oks_ap_equals_pycocotools(tmp_path: Path) -> None:
    expected, poses = coco_summary(tmp_path), collected(OBJECTS)
    assert 0.2 < expected[0] < expected[1] < 0.9
    np.testing.assert_allclose([metric.compute(poses) for metric in METRICS], expected, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("given", [[0.2], np.linspace(0.01, 0.3, J).tolist()])
def test_oks_ap_with_other_sigmas_equals_pycocotools(tmp_path: Path, given: List[float]) -> None:
    expected = coco_summary(tmp_path, np.broadcast_to(given, J))[0]
    assert OksAP(sigmas=given).compute(collected(OBJECTS)) == pytest.approx(expected, abs=1e-12)
    # Where nothing is said, those of the dataset count.
    assert OksAP().compute(collected(OBJECTS, np.broadcast_to(given, J))) == pytest.approx(expected, abs=1e-12)
    assert expected != pytest.approx(coco_summary(tmp_path)[0], abs=0.01)


@pytest.mark.parametrize("fraction", [0.02, 0.1])
def test_pck_equals_numpy(fraction: float) -> None:
    hits, count = 0, 0
    for one in OBJECTS:
        for (x, y, visibility), (found_x, found_y, _) in zip(one.true_J3, one.pose.point_J3):
            if visibility > 0:
                side = max(one.box_4[2] - one.box_4[0], one.box_4[3] - one.box_4[1])
                hits += np.hypot(found_x - x, found_y - y) <= fraction * side
                count += 1
    assert PCK(fraction=fraction).compute(collected(OBJECTS)) == pytest.approx(hits / count, abs=1e-12)
    assert 0.2 < hits / count < 0.9


def test_a_batch_is_collected_in_pixels_of_the_images() -> None:
    one = OBJECTS[5]
    crop = Crop.around(one.box_4, (256, 192), 1.1)
    target_J3 = crop.points(one.true_J3, np.arange(J)).astype(np.float32)
    left, top, right, bottom = one.box_4
    prediction = np.concatenate([one.pose.point_J3, [[left, top, one.pose.score], [right, bottom, 0]]])
    meta = meta_row(crop, (640, 480), one.box_4, one.area, one.image, 1.0, PERSON_SIGMAS)
    poses = CollectedPoses()
    poses.update(np.array([5]), prediction[None], target_J3[None], meta[None])
    found = poses.poses()
    known = one.true_J3[:, 2] > 0
    np.testing.assert_allclose(found.true_NJ3[0][known], one.true_J3[known], atol=1e-3)
    np.testing.assert_allclose(found.predicted_NJ3[0], one.pose.point_J3)
    assert (found.image_N[0], found.area_N[0], found.score_N[0]) == (one.image, one.area, one.pose.score)
    np.testing.assert_allclose(found.box_N4[0], one.box_4)
    np.testing.assert_allclose(found.sigma_J, PERSON_SIGMAS)


@pytest.mark.slow
def test_score_is_the_same_on_any_worker() -> None:
    """Two workers, one of which has an object that the other has, too."""
    whole, halves = collected(OBJECTS), [CollectedPoses(), CollectedPoses()]
    for index, one in enumerate(OBJECTS):
        for half in {index % 2, 0} if index == 7 else {index % 2}:
            halves[half].add_object(index, one.image, one.box_4, one.area, one.true_J3, one.pose, PERSON_SIGMAS)

    def measure(store: Store) -> List[float]:
        poses = halves[store.world.rank]
        all_gather(poses, store)
        return [metric.compute(poses) for metric in (*METRICS, PCK())]

    rendezvous = Rendezvous(2)
    for values in rendezvous.run(lambda world: measure(ThreadStore(world, rendezvous))):
        assert values == [metric.compute(whole) for metric in (*METRICS, PCK())]


@pytest.mark.slow
def test_metric_is_recomputed_after_a_merge() -> None:
    part, rest = collected(OBJECTS[:100]), CollectedPoses()
    assert OksAP().compute(part) != OksAP().compute(collected(OBJECTS))
    for index, one in enumerate(OBJECTS[100:], start=100):
        rest.add_object(index, one.image, one.box_4, one.area, one.true_J3, one.pose, PERSON_SIGMAS)
    part.merge(rest.rows())
    assert OksAP().compute(part) == OksAP().compute(collected(OBJECTS))


def test_empty_metric_is_undefined() -> None:
    assert np.isnan([metric.compute(CollectedPoses()) for metric in (*METRICS, PCK())]).all()


@pytest.mark.slow
def test_variants_are_named_and_wrong_ones_refused(describe_run: Any) -> None:
    assert OksAP().signature == "COCO,oks=0.50:0.95,area=all,max_detections=20,sigmas=dataset"
    assert OksAP(oks=0.5, sigmas=[0.05, 0.1]).signature.endswith("oks=0.50,area=all,max_detections=20,sigmas=0.05/0.1")
    assert PCK(fraction=0.2).signature == "fraction=0.2,of=longer side of the box"
    for word in ("metric.oks_ap.oks=0.52", "metric.oks_ap.area=small", "metric.pck.fraction=0"):
        with pytest.raises(ConfigError, match=word.partition("=")[0]):
            describe_run("task=pose_estimation", word)
