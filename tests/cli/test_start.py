"""Start of a plain run in this process: steps done once, and the depth of calls from the command to the network."""

from __future__ import annotations

import collections
import runpy
import sys
import traceback
from pathlib import Path
from typing import Any, Callable, Counter, List

import pytest
from hydra._internal.config_loader_impl import ConfigLoaderImpl

from mxtrain.cli import main
from mxtrain.cli.commands import COMMANDS
from mxtrain.config import groups
from mxtrain.engine.backend import autograd, gluon

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = str(ROOT / "mxtrain")
MAX_FRAMES = 15
FRAMES: List[List[str]] = []
"""Our own frames on the stack when the network was called, once for each training step."""


class Watching(gluon.nn.Block):
    """A small network that notes who has called it."""

    def __init__(self, num_classes: int):
        super().__init__()
        self.output = gluon.nn.Dense(num_classes)

    def forward(self, images: Any) -> Any:
        if autograd.is_training():
            stack = traceback.extract_stack()
            FRAMES.append([f"{Path(f.filename).name}: {f.name}" for f in stack if f.filename.startswith(PACKAGE)])
        return self.output(images)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a model of the user's own: `--config-dir conf model=watching`."""
    (tmp_path / "conf" / "model").mkdir(parents=True)
    (tmp_path / "conf" / "model" / "watching.yaml").write_text(f"_target_: {__name__}.Watching\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return tmp_path


@pytest.mark.slow
def test_start_up_imports_few_modules(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The default run, with another network; Hydra's own frames, and MXNet's, do not count."""
    FRAMES.clear()
    words = ["--config-dir", "conf", "model=watching", "trainer.max_steps=2", "hydra.run.dir=run"]
    monkeypatch.setattr(sys, "argv", ["mxtrain", *words])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("mxtrain", run_name="__main__", alter_sys=True)
    assert ended.value.code == 75  # trainer.max_steps is a budget
    assert len(FRAMES) == 2 and all(frames[0] == "__main__.py: <module>" for frames in FRAMES)
    assert max(map(len, FRAMES)) <= MAX_FRAMES, FRAMES[0]


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> Counter:
    """Counts how often a run does each expensive step before it trains."""
    from mxtrain.checkpoint import store
    from mxtrain.training.runner import Runner

    found: Counter = collections.Counter()
    is_training = [False]

    def count(owner: Any, name: str, what: str) -> None:
        function = getattr(owner, name)

        def counted(*args: Any, **named: Any) -> Any:
            if not is_training[0]:
                found[f"{what} {args[0]}" if what == "validates" else what] += 1
            return function(*args, **named)

        monkeypatch.setattr(owner, name, counted)

    def train(runner: Any, info: Any, do: Callable = Runner.train) -> Any:
        is_training[0] = True
        try:
            return do(runner, info)
        finally:
            is_training[0] = False

    count(ConfigLoaderImpl, "load_configuration", "composes")
    count(groups, "build_group", "validates")
    count(store, "read_named", "opens a checkpoint")
    count(store, "scan", "looks for checkpoints")
    monkeypatch.setattr(Runner, "train", train)
    return found


@pytest.mark.slow
def test_a_plain_run_composes_validates_and_opens_its_checkpoint_once(folder: Path, counts: Counter) -> None:
    words = ["model=mlp", "model.hidden=[8]", "hydra.run.dir=run", "logger=[]", "checkpoint.every_steps=3"]
    assert main([*words, "trainer.max_steps=5"]) == 75
    assert counts.pop("composes") == 1 and counts.pop("looks for checkpoints") == 1
    assert counts.pop("validates optimizer") == 1 and set(counts.values()) == {1}, counts
    counts.clear()
    assert main([*words, "trainer.max_steps=7"]) == 75  # continues
    assert counts.pop("opens a checkpoint") == 1 and set(counts.values()) == {1}, counts


def test_a_command_imports_no_other_command() -> None:
    """Shared code is below the commands: the composed configuration, the environment, the group of processes."""
    sys.path.insert(0, str(ROOT / "tests/support"))
    try:
        from test_architecture import imports_of
    finally:
        sys.path.remove(str(ROOT / "tests/support"))
    commands = {command.module for command in COMMANDS.values()}
    for name in commands:
        path = ROOT / f"{name.replace('.', '/')}.py"
        assert {module for _, module in imports_of(path)} & commands == set(), name
