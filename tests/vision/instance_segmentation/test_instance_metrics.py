"""AP of masks against COCO's own tool on the same masks, and how masks travel as numbers."""

from __future__ import annotations

import contextlib
import io
from typing import Any, List, Tuple

import numpy as np
import pytest
from pycocotools import mask as coco_mask

from mxtrain.vision.detection.boxes import Flag, rows_of
from mxtrain.vision.detection.detection_report import COCO_FIGURES, coco_figures, false_positives
from mxtrain.vision.detection.metrics import CocoAP, VocAP
from mxtrain.vision.instance_segmentation.mask_rows import (
    TRUE_SIDE,
    append_masks,
    build_meta,
    detection_masks,
    encode_masks,
)
from mxtrain.vision.instance_segmentation.metrics import CollectedMasks, MaskAP, MaskAR, pack_codes, unpack_codes
from mxtrain.vision.instance_segmentation.report import curves_of

SIZES = [(120, 160), (100, 90), (200, 140)]
Figure = Tuple[Tuple[int, int], np.ndarray, List[np.ndarray], np.ndarray, List[np.ndarray]]


def blob(rng: np.random.RandomState, size: Tuple[int, int], edges: np.ndarray) -> np.ndarray:
    left, top, right, bottom = edges.astype(int)
    mask_hw = np.zeros(size, np.uint8)
    lines, columns = np.ogrid[: size[0], : size[1]]
    inside = ((columns - (left + right) / 2) / max(right - left, 1)) ** 2 + (
        (lines - (top + bottom) / 2) / max(bottom - top, 1)
    ) ** 2 < 0.25
    mask_hw[inside] = 1
    mask_hw[top:bottom, left:right] &= (rng.rand(bottom - top, right - left) > 0.1).astype(np.uint8)
    return mask_hw


def images(count: int = 12) -> List[Figure]:
    """Objects, crowds among them, and detections that cover them more or less; some images have none of one."""
    rng, made = np.random.RandomState(0), []
    for number in range(count):
        size = SIZES[number % 3]
        num_true, num_found = (0 if number % 5 == 3 else 4), (0 if number % 7 == 6 else 9)
        begin_G2, side_G2 = rng.rand(num_true, 2) * 60, rng.rand(num_true, 2) ** 2 * 90 + 8
        edge_G4 = np.minimum(np.concatenate([begin_G2, begin_G2 + side_G2], axis=1), min(size))
        true_GD = rows_of(edge_G4, rng.randint(0, 3, num_true))
        true_GD[:, 5] = Flag.CROWD * (rng.rand(num_true) < 0.15)
        true = [blob(rng, size, edges) for edges in edge_G4]
        true_GD[:, 6] = [mask.sum() for mask in true]
        chosen = rng.randint(0, max(num_true, 1), num_found)
        edge_N4 = edge_G4[chosen] if num_true else rng.rand(num_found, 4) * 10 + [0, 0, 30, 30]
        edge_N4 = np.maximum(edge_N4 + rng.randn(num_found, 4) * rng.choice([1, 4, 12], (num_found, 1)), 0)
        edge_N4[:, 2:] = np.maximum(edge_N4[:, :2] + 4, edge_N4[:, 2:]).clip(0, min(size))
        of_object_N = true_GD[chosen, 4] if num_true else 0
        class_N = np.where(rng.rand(num_found) < 0.8, of_object_N, rng.randint(0, 3, num_found))
        score_N = np.round(rng.rand(num_found), 1)  # equal ones too
        found_N6 = np.column_stack([class_N, score_N, edge_N4])
        made.append((size, true_GD, true, found_N6, [blob(rng, size, edges) for edges in edge_N4]))
    return made


@pytest.fixture(scope="module")
def figures() -> List[Figure]:
    return images()


def collected_of(figures: List[Figure]) -> CollectedMasks:
    collected = CollectedMasks()
    for index, (size, true_GD, true, found_N6, found) in enumerate(figures):
        collected.add_masks(index, size, true_GD, encode_masks(true), found_N6, encode_masks(found))
    return collected


def reference(figures: List[Figure], kind: str) -> List[float]:
    """COCO's twelve figures from its own files' form."""
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    annotations: List[Any] = []
    results: List[Any] = []
    for index, (_, true_GD, true, found_N6, found) in enumerate(figures):
        for row, mask in zip(true_GD, true):
            code = coco_mask.encode(np.asfortranarray(mask))
            annotations.append(
                {
                    "id": len(annotations) + 1,
                    "image_id": index,
                    "category_id": int(row[4]),
                    "iscrowd": int(row[5] > 0),
                    "area": row[6],
                    "bbox": [row[0], row[1], row[2] - row[0], row[3] - row[1]],
                    "segmentation": code,
                }
            )
        for row, mask in zip(found_N6, found):
            one = {"image_id": index, "category_id": int(row[0]), "score": row[1]}
            if kind == "segm":
                one["segmentation"] = coco_mask.encode(np.asfortranarray(mask))
            else:
                one["bbox"] = [row[2], row[3], row[4] - row[2], row[5] - row[3]]
            results.append(one)
    with contextlib.redirect_stdout(io.StringIO()):
        coco = COCO()
        coco.dataset = {
            "images": [{"id": index, "height": one[0][0], "width": one[0][1]} for index, one in enumerate(figures)],
            "categories": [{"id": number} for number in range(3)],
            "annotations": annotations,
            "info": {},
        }
        coco.createIndex()
        evaluation = COCOeval(coco, coco.loadRes(results), kind)
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return evaluation.stats.tolist()


@pytest.mark.slow
def test_all_twelve_figures_equal_pycocotools(figures: List[Figure]) -> None:
    collected = collected_of(figures)
    for kind, coco in (("segm", collected.mask_coco()), ("bbox", collected.coco())):
        found = [-1 if value == "" else value for value in coco_figures(coco)]
        np.testing.assert_allclose(found, reference(figures, kind), atol=1e-6, err_msg=kind)
    assert 0.05 < found[0] < 0.95 and collected.mask_coco() is collected.mask_coco()
    for number, ((_, iou, area, most), wanted) in enumerate(zip(COCO_FIGURES, reference(figures, "segm"))):
        metric = (MaskAP if number < 6 else MaskAR)(iou=iou, area=area, max_detections=most)
        assert metric.compute(collected) == pytest.approx(np.nan if wanted == -1 else wanted, abs=1e-6, nan_ok=True)
    assert MaskAP(iou=0.5).signature == "COCO masks,iou=0.50,area=all,max_detections=100"
    assert CocoAP().compute(collected) == pytest.approx(reference(figures, "bbox")[0], abs=1e-6)
    assert VocAP().compute(collected) > 0


def test_masks_travel_as_numbers_on_any_worker(figures: List[Figure]) -> None:
    whole, parts = collected_of(figures), [CollectedMasks(), CollectedMasks()]
    for index, (size, true_GD, true, found_N6, found) in enumerate(figures):
        for part in parts if index == 4 else [parts[index % 2]]:  # one was collected by both
            part.add_masks(index, size, true_GD, encode_masks(true), found_N6, encode_masks(found))
    parts[0].merge(parts[1].rows())
    np.testing.assert_array_equal(parts[0].samples(), whole.samples())
    true, found = parts[0].codes()
    assert true == [code for one in figures for code in encode_masks(one[2])]
    assert found == [code for one in figures for code in encode_masks(one[4])]
    assert MaskAP().compute(parts[0]) == MaskAP().compute(whole)


@pytest.mark.parametrize("codes", [[], [b"04"], [b"x" * 42], [b"x" * 41, b"y"], [b"abc", b"d" * 300, b"o0"]])
def test_codes_are_packed_and_unpacked(codes: List[bytes]) -> None:
    rows = pack_codes(codes, 8)
    assert rows.shape[1] == 8 and unpack_codes(rows[:, 1:]) == codes


def test_precision_is_undefined_without_objects_and_0_without_detections() -> None:
    collected = CollectedMasks()
    assert np.isnan(MaskAP().compute(collected))
    collected.add_masks(0, (9, 9), np.zeros((0, 7)), [], np.zeros((0, 6)), [])
    assert np.isnan(MaskAP().compute(collected)) and np.isnan(MaskAR().compute(collected))
    mask, collected = np.ones((9, 9), np.uint8), CollectedMasks()
    collected.add_masks(1, (9, 9), rows_of([[0, 0, 9, 9]], [1]), encode_masks([mask]), np.zeros((0, 6)), [])
    assert MaskAP().compute(collected) == 0 and false_positives(*collected.boxes()[1:], collected.overlap()) == []


def test_predicted_mask_is_pasted_into_its_image() -> None:
    """A prediction whose mask fills its box, of an image that entered the network at half its size."""
    found_NR = np.zeros((2, 8 + 28 * 28), np.float32)
    found_NR[0, :8] = [1, 0.9, 10, 20, 30, 50, 60, 80]
    found_NR[0, 8:] = 1
    found_NR[1, 0] = -1
    row_MR = append_masks(rows_of([[5, 10, 15, 25]], [1]), np.ones((1, TRUE_SIDE, TRUE_SIDE)))
    true = np.zeros((60, 80), np.uint8)
    true[20:50, 10:30] = 1
    collected = CollectedMasks()
    meta = build_meta(np.array([[60, 80, 30, 40]]), [encode_masks([true])])
    collected.update(np.array([3]), [found_NR], [row_MR], meta)
    assert MaskAP().compute(collected) == pytest.approx(1.0) and CocoAP().compute(collected) == pytest.approx(1.0)
    np.testing.assert_array_equal(detection_masks(found_NR[:1])[0], true)
    assert collected.codes() == (encode_masks([true]), encode_masks([true]))
    assert collected.sizes().tolist() == [[60, 80]]


def test_mistakes_and_curves_are_of_masks(figures: List[Figure]) -> None:
    """A box that is right with a mask that is not is a mistake."""
    size, mask = (40, 40), np.zeros((40, 40), np.uint8)
    mask[10:20, 10:30] = 1
    wrong = np.zeros_like(mask)
    wrong[10:12, 10:30] = 1
    found_N6 = np.array([[0, 0.9, 10, 10, 30, 20], [0, 0.8, 10, 10, 30, 20], [0, 0.95, 10, 10, 30, 20]], float)
    collected = CollectedMasks()
    found = encode_masks([wrong, mask, wrong])
    collected.add_masks(0, size, rows_of([[10, 10, 30, 20]], [0]), encode_masks([mask]), found_N6, found)
    assert false_positives(*collected.boxes()[1:], collected.overlap()) == [2, 0]
    assert false_positives(*collected.boxes()[1:], lambda number, others: np.ones(len(others))) == [0, 1]  # by boxes
    curves = curves_of(collected_of(figures).mask_coco())
    assert curves.keys() == {0, 1, 2}
    mean = np.mean([one[0] for one in curves.values()])
    assert mean == pytest.approx(MaskAP(iou=0.5).compute(collected_of(figures)))
