"""A worker of a study whose training processes are replaced by a function."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Tuple

from mxtrain.errors import EXIT_BUDGET, EXIT_FINISHED
from mxtrain.files.durable import encode_json
from mxtrain.tuning.folder import StudyDescription, StudyFolder
from mxtrain.tuning.space import Space, TunedSetting
from mxtrain.tuning.spec import TuneSettings
from mxtrain.tuning.worker import Job, Worker

LR = TunedSetting("optimizer.lr", "float", low=1e-4, high=1e-1, log=True)

End = Tuple[int, Dict[str, Any]]
"""Exit code of a training process, and content of the status.json that it writes; nothing is written if it is empty."""
Outcome = Callable[[int, Optional[int]], End]
"""Number of a trial and budget of a rung -> end of the training process."""


def describe_study(n_trials: int, **settings: Any) -> StudyDescription:
    """A study of the learning rate that maximises val/accuracy of runs of six epochs."""
    made = TuneSettings(n_trials=n_trials, **settings)
    return StudyDescription("s", [], [], "/", made, Space([LR]), ["val/accuracy"], ["max"], 6)


class ScriptedWorker(Worker):
    """A worker that trains nothing.

    Attributes:
        said: lines of progress.
        trained: trial and budget of each process.
    """

    def __init__(self, folder: Path, description: StudyDescription, outcome: Outcome) -> None:
        self.said: List[str] = []
        self.trained: List[Tuple[int, Optional[int]]] = []
        self._outcome = outcome
        study_folder = StudyFolder(folder)
        study_folder.create(description)
        super().__init__(study_folder, description, self.said.append)

    def train_process(self, job: Job, budget: Optional[int]) -> int:
        self.trained.append((job.number, budget))
        code, status = self._outcome(job.number, budget)
        if status:
            job.run_dir.mkdir(parents=True, exist_ok=True)
            (job.run_dir / "status.json").write_bytes(encode_json({"state": "interrupted", **status}))
        return code


def end_of_rung(budget: Optional[int], best: Optional[float], last: Optional[float] = None) -> End:
    """Returns the end of a process that trains to the end of a rung.

    Args:
        budget: epochs or steps of the run at the end of the rung; None = the whole run.
        best: best value of val/accuracy; None = never measured.
        last: its last value, if it is another one.
    """
    code = EXIT_FINISHED if budget is None else EXIT_BUDGET
    status = {
        "exit_code": code,
        "epoch": budget or 0,
        "step": budget or 0,
        "metrics": {"val/accuracy": best if last is None else last},
        "best": None if best is None else {"metric": "val/accuracy", "value": best, "step": budget},
    }
    return code, status
