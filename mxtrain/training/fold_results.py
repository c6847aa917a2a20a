"""Results of a cross validation: the values of each fold, with mean and standard deviation, in folds.json."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, Optional, Sequence

import numpy as np

from mxtrain.archive.status import read_status_object
from mxtrain.checkpoint import open_checkpoint, require_run_state
from mxtrain.errors import EXIT_FINISHED, CheckpointError
from mxtrain.files.durable import write_json_atomic
from mxtrain.files.json_form import NUMBER, problems_of
from mxtrain.files.json_text import read_json

if TYPE_CHECKING:
    from mxtrain.training.spec import Trainer
    from mxtrain.types.annotations import JsonForm, JsonObject

FOLDS_FILE = "folds.json"
VALIDATED, TESTED = "val/", "test/"
_VALUE = (*NUMBER, type(None))
_FORM: JsonForm = {
    "state": str,
    "exit_code": int,
    "cause": str,
    "num_folds": int,
    "metrics": {"*": _VALUE},
    "std": {"*": _VALUE},
    "defined?": {"*": int},
    "runs": [{"run": str, "state": str, "exit_code": int, "values": {"*": _VALUE}}],
}


def fold_folder(number: int) -> str:
    """Returns the name of the run directory of a fold, inside of that of the cross validation."""
    return f"fold-{number}"


@dataclass(frozen=True)
class FoldResult:
    """The result of one fold.

    Attributes:
        run: name of its run directory.
        state, exit_code, cause: as in status.json.
        step: the last step.
        best_step: the step of the best weights, to which `values` belong; None = nothing was validated.
        values: loss and metrics of the best weights on the fold, and on the test split if there is one.
        last: loss and metrics of the last weights on the fold.
    """

    run: str
    state: str
    exit_code: int
    cause: str = ""
    step: int = 0
    best_step: Optional[int] = None
    values: Dict[str, float] = field(default_factory=dict)
    last: Dict[str, float] = field(default_factory=dict)


def read_fold(run_dir: Path, state: str, exit_code: int, cause: str, step: int) -> FoldResult:
    """Returns the result of a fold, with the values that its run directory holds."""
    metrics = _numbers(read_status_object(run_dir).get("metrics"))
    last = {name: value for name, value in metrics.items() if name.startswith(VALIDATED)}
    best_step, best = None, {}
    try:
        checkpoint = open_checkpoint(run_dir, which="best")
        require_run_state(checkpoint)
        # The values belong to the last validation, which may be older than the checkpoint.
        if checkpoint.state["train"]["validated_step"] == checkpoint.step:
            best_step, best = checkpoint.step, _numbers(checkpoint.state["train"]["values"])
    except CheckpointError:  # of a run that failed early, or with checkpoint=off
        best = last
    tested = {name: value for name, value in metrics.items() if name.startswith(TESTED)}
    values = {**{name: value for name, value in best.items() if name.startswith(VALIDATED)}, **tested}
    return FoldResult(run_dir.name, state, exit_code, cause, step, best_step, values, last)


def _numbers(json_value: object) -> Dict[str, float]:
    """Returns the numbers of a JSON object as floats, and null, as which JSON holds an undefined value, as NaN."""
    items = json_value.items() if isinstance(json_value, Mapping) else ()
    return {
        str(name): math.nan if value is None else float(value)
        for name, value in items
        if value is None or isinstance(value, NUMBER) and not isinstance(value, bool)
    }


def summarize(values: Sequence[Mapping[str, float]]) -> Dict[str, Dict[str, float]]:
    """Returns mean and sample standard deviation (with n - 1) of each value that every fold has, by name.

    Folds in which a value is undefined (NaN) are left out of both; "defined" is the number of the others. The mean of
    none is NaN, and so is the deviation of a single fold.
    """
    summary: Dict[str, Dict[str, float]] = {}
    for name in values[0] if values else ():
        if all(name in fold_values for fold_values in values):
            value_F = np.array([fold_values[name] for fold_values in values], np.float64)
            value_F = value_F[~np.isnan(value_F)]
            std = float(value_F.std(ddof=1)) if len(value_F) > 1 else math.nan
            mean = float(value_F.mean()) if len(value_F) else math.nan
            summary[name] = {"mean": mean, "std": std, "defined": len(value_F)}
    return summary


def write_folds(folder: Path, trainer: Trainer, results: Sequence[FoldResult]) -> JsonObject:
    """Writes folds.json, and returns its content. Means are over the folds that have been trained to their end."""
    finished = [one for one in results if one.exit_code == EXIT_FINISHED]
    failed = next((one for one in results if one.exit_code != EXIT_FINISHED), None)
    is_complete = len(results) == trainer.num_folds
    state = failed.state if failed is not None else "finished" if is_complete else "running"
    best, last = (summarize([getattr(one, name) for one in finished]) for name in ("values", "last"))
    content: Dict[str, Any] = {
        "state": state,
        "exit_code": failed.exit_code if failed is not None else EXIT_FINISHED,
        "cause": "" if failed is None else f"{failed.run}: {failed.cause or failed.state}",
        "num_folds": trainer.num_folds,
        "settings": {
            "folds": trainer.folds,
            "fold_repeats": trainer.fold_repeats,
            "fold_stratify": trainer.fold_stratify,
            "fold_groups": trainer.fold_groups,
        },
        "monitor": trainer.monitor,
        "metrics": {name: one["mean"] for name, one in best.items()},
        "std": {name: one["std"] for name, one in best.items()},
        "defined": {name: one["defined"] for name, one in best.items()},
        "last": last,
        "runs": [asdict(one) for one in results],
    }
    write_json_atomic(folder / FOLDS_FILE, content)
    return content


def read_folds(folder: Path) -> Optional[JsonObject]:
    """Returns the content of folds.json; None if the folder holds no cross validation.

    Raises:
        CheckpointError: the file is none that `write_folds` wrote.
    """
    file = folder / FOLDS_FILE
    if not file.is_file():
        return None
    try:
        content = read_json(file)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{file} cannot be read: {error}.") from None
    for problem in problems_of(content, _FORM):
        raise CheckpointError(f"{file} is not the result of a cross validation: in it, {problem}.")
    # The file may be untrusted, and a name that contains a path would lead out of the folder.
    odd: List[str] = [one["run"] for one in content["runs"] if Path(one["run"]).name != one["run"]]
    if odd:
        raise CheckpointError(f"{file} names the run '{odd[0]}', which is not in its folder.")
    return content
