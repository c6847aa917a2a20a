"""State that a task changes in training besides parameters is saved and resumed bit for bit, without code in the
core."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, Mapping, Tuple

import numpy as np
import pytest

from mxtrain.checkpoint.contents import read_checkpoint
from mxtrain.errors import CheckpointError
from mxtrain.task.classification import Classification
from mxtrain.training import snapshot

GIVEN = (
    "model=mlp",
    "model.hidden=[16]",
    "dataset.batch_size=100",
    "task._target_=test_stateful.Remembering",
    "lr_scheduler=constant",
)


class Memory:
    """Counts computations of the loss and keeps a mean of scores; the loss depends on both."""

    def __init__(self) -> None:
        from mxtrain.engine.backend import nd

        self.count, self.mean = 0, nd.zeros((10,))

    def save_state(self) -> Tuple[Mapping[str, Any], Mapping[str, Any]]:
        return {"mean": self.mean}, {"count": self.count}

    def load_state(self, arrays: Mapping[str, np.ndarray], values: Mapping[str, Any], source: str) -> None:
        self.mean[:] = arrays["mean"]
        self.count = values["count"]


class Remembering(Classification):
    """Classification whose loss remembers."""

    name: ClassVar[str] = "classification"

    def build_loss(self, description: Any, signature: Any, training: bool) -> Any:
        from mxtrain.engine.backend import gluon

        inner = super().build_loss(description, signature, training)

        class Loss(gluon.Block):
            weighted, memory = False, Memory()

            def forward(self, scores: Any, label: Any) -> Any:
                if not training:
                    return inner(scores, label)
                self.memory.count += 1
                self.memory.mean[:] = 0.9 * self.memory.mean + 0.1 * scores.detach().mean(axis=0)
                loss = inner(scores, label)
                return loss * (1 + 0.01 * self.memory.count) + (scores * self.memory.mean).sum(axis=1) * 0.1

        return Loss()

    def build_states(self, loss: Any) -> Mapping[str, Any]:
        return {"memory": loss.memory}


@pytest.mark.slow
def test_a_tasks_own_state_is_resumed_bit_for_bit(train_run: Any, tmp_path: Path) -> None:
    _, whole = train_run(*GIVEN, "trainer.max_steps=9", "trainer.max_epochs=null", run_dir=tmp_path / "whole")
    for steps in (4, 9):
        _, last = train_run(*GIVEN, f"trainer.max_steps={steps}", "trainer.max_epochs=null", run_dir=tmp_path / "parts")
    assert last.weights_sha256 == whole.weights_sha256
    assert read_checkpoint(last.checkpoint).state["states"]["memory"] == {"count": 9}


@pytest.mark.slow
def test_run_without_saved_state_ends_differently(
    train_run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or the test above would show nothing."""
    _, whole = train_run(*GIVEN, "trainer.max_steps=9", "trainer.max_epochs=null", run_dir=tmp_path / "whole")
    train_run(*GIVEN, "trainer.max_steps=4", "trainer.max_epochs=null", run_dir=tmp_path / "parts")
    monkeypatch.setattr(Memory, "load_state", lambda *arguments: None)
    _, last = train_run(*GIVEN, "trainer.max_steps=9", "trainer.max_epochs=null", run_dir=tmp_path / "parts")
    assert last.weights_sha256 != whole.weights_sha256


@pytest.mark.slow
def test_a_checkpoint_without_the_state_is_refused_by_its_name(
    train_run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = snapshot.take

    def without(*arguments: Any, **options: Any) -> Any:
        found = taken(*arguments, **options)
        del found.state["states"]["memory"]
        return found

    monkeypatch.setattr(snapshot, "take", without)
    train_run(*GIVEN, "trainer.max_steps=2", "trainer.max_epochs=null", run_dir=tmp_path / "run")
    monkeypatch.undo()
    with pytest.raises(CheckpointError, match="holds no state 'memory', which this run has"):
        train_run(*GIVEN, "trainer.max_steps=4", "trainer.max_epochs=null", run_dir=tmp_path / "run")
