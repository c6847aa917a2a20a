"""Runs of Faster R-CNN: placements compute what one device does, in bfloat16 too; files and refusals."""

import json
import math

import numpy as np
import pytest
from low_precision import BFLOAT16, needs_bfloat16
from sampled_training import parts_of, train_on

from mxtrain.cli.dispatch import run
from mxtrain.training.verification import verify
from mxtrain.vision.detection.boxes import NUM_COLUMNS, padded, rows_of

SCENES = ("dataset.image_size=[64,64]", "dataset.num_train=16", "dataset.num_val=4", "dataset.batch_size=4")
PYRAMID = (
    "model.name=faster_rcnn_fpn_custom",
    "model.backbone=mobilenet0.25",
    "model.channels=8",
    "model.head_units=32",
    "model.region_samples=16",
    "model.proposals=60",
    "model.regions=20",
    *SCENES,
)
STAGED = (
    "model.name=faster_rcnn_custom",
    "model.backbone=resnet18_v1b",
    "model.channels=16",
    "model.region_samples=8",
    "model.proposals=50",
    "model.regions=8",
    *SCENES,
)
PLACEMENTS = [
    ("parallel=pipeline", "parallel.microbatches=2"),
    pytest.param(
        ("parallel=hybrid", "parallel.microbatches=2", "parallel.cut_before=[box_features]"), marks=pytest.mark.slow
    ),
    pytest.param(("parallel=data", "amp=bfloat16"), marks=[pytest.mark.slow, needs_bfloat16]),
]


@pytest.mark.zoo_cases("placement0", "placement1")
@pytest.mark.parametrize("placement", PLACEMENTS)
def test_placements_equal_one_device(describe_run, placement):
    assert verify(describe_run(*PYRAMID, *placement), 2, 1e-5).passed


@pytest.mark.zoo
@pytest.mark.slow
@pytest.mark.parametrize(
    "placement",
    [
        pytest.param(("parallel=data",), marks=pytest.mark.zoo),
        pytest.param(("parallel=pipeline", "parallel.microbatches=2"), marks=pytest.mark.zoo),
        ("parallel=data", "parallel.batch_norm=global"),  # norms behind regions have several rows of each sample
    ],
)
def test_placements_with_a_single_map_equal_one_device(describe_run, placement):
    assert verify(describe_run(*STAGED, *placement), 1, 1e-5).passed


@pytest.mark.slow
def test_image_without_objects_trains_the_background(describe_run):
    box_BMD = np.full((2, 3, NUM_COLUMNS), -1, np.float32)
    loss_B, gradients = train_on(describe_run(*PYRAMID), box_BMD, [0, 1])
    assert (loss_B > 0).all() and all(np.isfinite(one).all() for one in gradients.values())
    assert gradients["class_predictor.bias"][0] < 0 < gradients["class_predictor.bias"][1:].min()
    assert gradients["rpn.rpn_head.score.bias"].min() > 0
    assert not gradients["box_predictor.weight"].any() and not gradients["rpn.rpn_head.loc.weight"].any()


@pytest.mark.slow
def test_a_sample_has_the_same_loss_in_any_batch(describe_run):
    """The random draws of a sample and the divisor of its loss do not depend on the batch."""
    description = describe_run(*PYRAMID, "model.options={norm_kwargs:{use_global_stats:true}}")
    two = rows_of([[9, 20, 30, 50], [30, 2, 60, 40]], [1, 2])
    boxes = padded([rows_of([[5, 5, 40, 44]], [3]), np.zeros((0, 7)), two], 2)
    together, _ = train_on(description, boxes, [4, 7, 8])
    alone = [train_on(description, boxes[at : at + 1], [index])[0][0] for at, index in enumerate([4, 7, 8])]
    np.testing.assert_allclose(together, alone, rtol=1e-4)


@pytest.mark.slow
def test_draws_differ_between_epochs_but_not_between_validations(describe_run):
    from mxtrain.engine.backend import nd
    from mxtrain.types import Batch

    description = describe_run(*PYRAMID)
    signature, _, _ = parts_of(description)
    batch = Batch((nd.zeros((2, 3, 64, 64)),), (nd.zeros((2, 5, NUM_COLUMNS)),), 2, index_B=np.array([3, 9]))
    trained, validated = (
        [description.task.build_collate(description, signature, training)(batch, epoch) for epoch in (0, 1)]
        for training in (True, False)
    )
    assert [one.shape for one in trained[0].inputs] == [(2, 3, 64, 64), (2, 5, NUM_COLUMNS), (2, 60 + 5)]
    assert len(validated[0].inputs) == 1 and validated[0].targets[-1].shape == (2, 1023)
    for at, same in ((0, False), (1, True)):
        first, second = (one.targets[-1].asnumpy() for one in (trained, validated)[at])
        assert (first == second).all() == same
        assert 0 <= first.min() < 0.01 and 0.99 < first.max() < 1 and abs(first.mean() - 0.5) < 0.03
        assert abs(np.corrcoef(first)[0, 1]) < 0.1
    # Numbers of the network are not those of the loss.
    assert not (trained[0].inputs[2].asnumpy() == trained[0].targets[-1].asnumpy()[:, :65]).any()


@pytest.mark.slow
def test_a_run_ends_is_evaluated_and_predicts(train_run, tmp_path, capsys):
    _, result = train_run(*PYRAMID, "trainer.max_epochs=1", *PLACEMENTS[0], *BFLOAT16)
    assert result.exit_code == 0 and math.isfinite(result.metrics["val/loss"]) and "val/voc_ap" in result.metrics
    directory = str(tmp_path / "run")
    assert run(["eval", directory, "split=val", "limit_batches=1", "parallel=single"]) == 0
    found = json.loads((tmp_path / "run" / "eval" / "val" / "metrics.json").read_text())
    assert math.isfinite(found["loss"])
    capsys.readouterr()
    assert run(["eval", directory, "split=val", "explain=integrated_gradients"]) == 2
    assert "change with the image" in capsys.readouterr().err


@pytest.mark.slow
def test_a_few_batches_can_be_overfitted(train_run):
    """They are trained on though they come in the order of evaluation."""
    _, result = train_run(*PYRAMID, "trainer.max_epochs=1", "trainer.overfit_batches=1", *PLACEMENTS[0])
    assert result.exit_code == 0 and math.isfinite(result.metrics["train/loss"])


@pytest.mark.slow
def test_more_stages_than_there_are_places_to_cut_are_refused(describe_run):
    from mxtrain.errors import ConfigError
    from mxtrain.training.objective import build_objective

    description = describe_run(*PYRAMID, "parallel=pipeline", "parallel.stages=4", "parallel.microbatches=1")
    signature, network, _ = parts_of(description)
    with pytest.raises(ConfigError, match=r"box_features, rpn\), which makes 3 stages at most.*parallel.stages=3"):
        description.parallel.build(build_objective(description, network, signature), 1)
