"""Runs of SSD detectors from files: placements compute what one device does, and a run ends in an export."""

import math

import pytest
from low_precision import needs_bfloat16
from test_symbol_ssd import SIZE, training_graph, write

from mxtrain.cli.dispatch import run
from mxtrain.training.verification import verify

SCENES = (
    "task=detection",
    "model=symbol_ssd",
    f"dataset.image_size=[{SIZE},{SIZE}]",
    "dataset.num_train=32",
    "dataset.num_val=8",
    "dataset.batch_size=8",
)


@pytest.mark.slow
@pytest.mark.parametrize(
    "placement",
    [
        ("parallel=data",),
        ("parallel=pipeline", "parallel.microbatches=2"),
        ("parallel=hybrid", "parallel.microbatches=2", "trainer.grad_accumulation=2"),
        pytest.param(("parallel=data", "amp=bfloat16"), marks=needs_bfloat16),
    ],
)
def test_placements_equal_one_device(describe_run, tmp_path, placement):
    words = (*SCENES, f"model.prefix={write(tmp_path, training_graph())}", *placement)
    assert verify(describe_run(*words), 1, 1e-5).passed


@pytest.mark.slow
def test_run_needs_no_file_of_the_old_network_any_more(train_run, tmp_path):
    prefix = write(tmp_path, training_graph())
    _, result = train_run(*SCENES, f"model.prefix={prefix}", "trainer.max_epochs=1")
    assert result.exit_code == 0 and math.isfinite(result.metrics["val/loss"]) and "val/voc_ap" in result.metrics
    for path in tmp_path.glob("ssd-*"):
        path.unlink()
    folder = str(tmp_path / "run")
    assert run(["eval", folder, "split=val", "explain=integrated_gradients", "explain_samples=2"]) == 0
    assert (tmp_path / "run" / "eval" / "val" / "explain_integrated_gradients" / "explain.csv").exists()
    assert run(["predict", folder, "sample=2"]) == 0
    assert run(["export", folder]) == 0
    assert (tmp_path / "run" / "export" / "model.onnx").exists()
