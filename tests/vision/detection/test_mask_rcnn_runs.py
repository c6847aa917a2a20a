"""Runs of Mask R-CNN: placements compute what one device does, in bfloat16 too; what an image teaches; a run."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from low_precision import BFLOAT16, needs_bfloat16
from sampled_training import train_on

from mxtrain.cli.dispatch import run
from mxtrain.training.verification import verify
from mxtrain.vision.detection.boxes import padded, rows_of
from mxtrain.vision.instance_segmentation.mask_rows import TRUE_COLUMNS, TRUE_SIDE

SCENES = ("dataset.image_size=[64,64]", "dataset.num_train=16", "dataset.num_val=4", "dataset.batch_size=4")
SMALL = ("model.mask_channels=8", "model.max_detections=5", *SCENES)
PYRAMID = (
    "model.name=mask_rcnn_fpn_custom",
    "model.backbone=mobilenet0.25",
    "model.channels=8",
    "model.head_units=32",
    "model.mask_convs=1",
    "model.region_samples=16",
    "model.proposals=60",
    "model.regions=20",
    *SMALL,
)
STAGED = (
    "model.name=mask_rcnn_custom",
    "model.backbone=resnet18_v1b",
    "model.channels=16",
    "model.region_samples=8",
    "model.proposals=50",
    "model.regions=8",
    *SMALL,
)
PIPELINE = ("parallel=pipeline", "parallel.microbatches=2")


@pytest.mark.parametrize(
    "words",
    [
        pytest.param((*PYRAMID, *PIPELINE), marks=pytest.mark.zoo),
        pytest.param(
            (*PYRAMID, "parallel=hybrid", "parallel.microbatches=2", "parallel.cut_before=[box_features]"),
            marks=pytest.mark.zoo,
        ),
        pytest.param((*PYRAMID, "parallel=data", "amp=bfloat16"), marks=[pytest.mark.slow, needs_bfloat16]),
        pytest.param((*STAGED, "parallel=data"), marks=pytest.mark.zoo),
        pytest.param((*STAGED, *PIPELINE, "parallel.cut_before=[top_features]"), marks=pytest.mark.zoo),
    ],
    ids=["pipeline", "hybrid", "bfloat16", "staged-data", "staged-pipeline"],
)
def test_placements_equal_one_device(describe_run, words):
    steps = 1 if words[: len(STAGED)] == STAGED else 2
    assert verify(describe_run(*words), steps, 1e-5).passed


def append_masks(row_MD, mask_SS):
    """Rows of objects that all have this mask."""
    return np.concatenate([row_MD, np.tile(mask_SS.reshape(1, -1), (len(row_MD), 1))], axis=1)


@pytest.mark.slow
def test_an_image_without_objects_has_no_mask_loss(describe_run):
    loss_B, gradients = train_on(describe_run(*PYRAMID), np.full((2, 3, TRUE_COLUMNS), -1, np.float32), [0, 1])
    assert (loss_B > 0).all() and all(np.isfinite(one).all() for one in gradients.values())
    masks = {name: one for name, one in gradients.items() if name.startswith("mask.")}
    assert len(masks) == 6 and not any(one.any() for one in masks.values())
    assert gradients["class_predictor.bias"][0] < 0


@pytest.mark.slow
def test_objects_teach_masks_of_their_class_the_same_in_any_batch(describe_run):
    description = describe_run(*PYRAMID, "model.options={norm_kwargs:{use_global_stats:true}}")
    full = np.ones((TRUE_SIDE, TRUE_SIDE))
    objects = [
        append_masks(rows_of(edges, classes), full)
        for edges, classes in (([[5, 5, 40, 44]], [3]), ([[9, 20, 30, 50], [30, 2, 60, 40]], [1, 1]))
    ]
    boxes = padded([objects[0], np.zeros((0, TRUE_COLUMNS)), objects[1]], 2)
    together, gradients = train_on(description, boxes, [4, 7, 8])
    alone = [train_on(description, boxes[at : at + 1], [index]) for at, index in enumerate([4, 7, 8])]
    np.testing.assert_allclose(together, [loss_B[0] for loss_B, _ in alone], rtol=1e-4)
    for name, gradient in gradients.items():
        wanted = sum(found[name] for _, found in alone)
        np.testing.assert_allclose(gradient, wanted, rtol=1e-3, atol=1e-4 * max(1e-3, abs(wanted).max()))
    bias_K = gradients["mask.mask.bias"]
    assert np.flatnonzero(bias_K).tolist() == [1, 3] and (bias_K[[1, 3]] < 0).all()  # inside of objects all is of them


@pytest.mark.slow
def test_a_run_ends_is_evaluated_and_predicts(train_run, tmp_path, capsys):
    _, result = train_run(*PYRAMID, "trainer.max_epochs=1", *PIPELINE, *BFLOAT16)
    assert result.exit_code == 0 and math.isfinite(result.metrics["val/loss"]) and "val/mask_ap" in result.metrics
    directory = tmp_path / "run"
    assert run(["eval", str(directory), "split=val", "parallel=single"]) == 0
    found = json.loads((directory / "eval" / "val" / "metrics.json").read_text())
    assert math.isfinite(found["loss"]) and math.isfinite(found["mask_ap50"])
    capsys.readouterr()
    assert run(["eval", str(directory), "split=val", "explain=integrated_gradients"]) == 2
    assert "change with the image" in capsys.readouterr().err
