"""The command line in a process of its own, as a person starts it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional

import pytest

ROOT = Path(__file__).resolve().parents[2]

# Any import of MXNet ends the process with a code that nothing else has.
WITHOUT_MXNET = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "mxnet":
            import os; os.write(2, b"MXNet was imported"); os._exit(99)
sys.meta_path.insert(0, Refuse())
from mxtrain.cli import main
sys.exit(main(sys.argv[1:]))
"""


class Shell:
    """Runs mxtrain in `folder`; keeps nothing running."""

    def __init__(self, folder: Path):
        self.folder = folder

    def __call__(
        self, *arguments: str, mxnet: bool = False, memory_gib: Optional[int] = None, **environ: str
    ) -> subprocess.CompletedProcess:
        """Runs `python -m mxtrain ARGUMENTS`; with `memory_gib`, in no more address space than that."""
        start = ["-W", "error::DeprecationWarning:mxtrain", *(["-m", "mxtrain"] if mxnet else ["-c", WITHOUT_MXNET])]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **environ}

        # A shell sets the limit: `preexec_fn` would copy this process, which may hold gigabytes.
        limit = [] if memory_gib is None else ["sh", "-c", 'ulimit -v "$0" && exec "$@"', str(memory_gib << 20)]
        return subprocess.run(
            [*limit, sys.executable, *start, *arguments],
            cwd=self.folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def refused(self, *arguments: str) -> str:
        """Returns the message for a mistake: exit code 2, no standard output, nothing written, no MXNet."""
        before = files_in(self.folder)
        done = self(*arguments)
        assert done.returncode == 2, (done.returncode, done.stdout, done.stderr)
        assert done.stderr.startswith("error: ") and "Traceback" not in done.stderr
        assert done.stdout == "" and files_in(self.folder) == before
        assert "append to your config" not in done.stderr
        return done.stderr


def files_in(folder: Path) -> List[Path]:
    """Files and folders, without what Python compiles of the user's own modules."""
    return sorted(path for path in folder.rglob("*") if "__pycache__" not in path.parts)


@pytest.fixture
def mxtrain(tmp_path: Path) -> Shell:
    return Shell(tmp_path)


@pytest.fixture
def refused(tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch):
    """Returns the message for a mistake: exit code 2, no standard output, nothing written, MXNet not imported."""
    from mxtrain.cli import main
    from mxtrain.cluster.launch.preserved import preserved_process

    folder = tmp_path / "cwd"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr("mxtrain.cli.tune.QUIET_S", 600.0)  # no lines about progress, however slow the machine is

    def refuse(*arguments: str) -> str:
        before = files_in(folder)
        with preserved_process():  # the command sets variables if MXNet is not imported yet
            assert main(list(arguments)) == 2
        said = capsys.readouterr()
        assert said.err.startswith("error: ") and "Traceback" not in said.err and said.out == ""
        assert "append to your config" not in said.err and files_in(folder) == before
        return said.err

    return refuse


@pytest.fixture(scope="module")
def composed() -> str:
    from mxtrain.composing.composer import Composer

    with Composer() as composer:
        return json.dumps(composer.compose([]).config)


@pytest.fixture
def description(composed) -> Dict[str, Any]:
    return json.loads(composed)


@pytest.fixture
def write_run(tmp_path: Path) -> Callable[[Dict[str, Any]], Path]:
    """A description -> the directory of a run that has a checkpoint without arrays."""
    from mxtrain.checkpoint import CheckpointStore, Snapshot

    def write(description: Dict[str, Any]) -> Path:
        given = {
            "shape": [1, 8, 8],
            "mean": [0.0],
            "std": [1.0],
            "class_names": ["a", "b"],
            "decoding": {"shape": [1, 8, 8], "central_crop": 1.0},
        }
        train = {
            "step": 1,
            "epoch": 0,
            "epoch_step": 1,
            "epoch_sums": [],
            "window_sums": [],
            "validated_step": 0,
            "validation_due": False,
            "values": {},
            "early_stopping": {},
            "best": None,
            "unmoved": {},
        }
        optimizer: Dict[str, Any] = {"update_counts": {}, "attributes": {}, "cum_counts": {}}
        run = {
            "description": description,
            "input": given,
            "workers": 1,
            "updates": False,
            "threads": "1",
            "own_operators": "",
            "cut_before": [],
            "batch_size": 64,
        }
        store = CheckpointStore(tmp_path / "run" / "checkpoints", keep_last=1, keep_top=0, report=print)
        store.save(Snapshot(step=1, epoch=0, arrays={}, state={"run": run, "train": train, "optimizer": optimizer}))
        store.close()
        return tmp_path / "run"

    return write
