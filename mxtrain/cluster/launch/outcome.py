"""The outcome of a job, and how it is reported."""

from __future__ import annotations

import logging
import os
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, List, Optional, Sequence

from mxtrain.callback.protocol import Result
from mxtrain.cluster.reported_cause import report_cause
from mxtrain.errors import EXIT_BUDGET, EXIT_FINISHED, EXIT_SIGINT, EXIT_SIGTERM
from mxtrain.files.durable import encode_json, open_file
from mxtrain.files.json_form import NUMBER, require_form
from mxtrain.files.json_text import parse_json
from mxtrain.files.regular_files import MAX_TEXT_BYTES, open_regular
from mxtrain.terminal.program import with_program_name

if TYPE_CHECKING:
    from mxtrain.types.annotations import Best, JsonForm

STOPS = (EXIT_BUDGET, EXIT_SIGINT, EXIT_SIGTERM)
"""Exit codes of runs that were told to stop: no errors, the same command continues."""

_FORM: JsonForm = {
    "number": (int, type(None)),
    "overrides": [str],
    "run_dir": str,
    "state": str,
    "exit_code": int,
    "cause": str,
    "step": int,
    "best": (dict, type(None)),
    "swept?": [str],
    "before?": bool,
}
_FORM_OF_BEST: JsonForm = {"metric": str, "value": NUMBER, "step": int, "loss?": NUMBER}
log = logging.getLogger(__name__)


class JobFailed(Exception):
    """Tells a sweeper that a job failed. Its cause was shown when it happened."""


@dataclass(frozen=True)
class Outcome:
    """The end of one job; a line of a sweep's jobs.jsonl."""

    number: Optional[int]
    """The job's number in a sweep, None for a single run."""
    overrides: Sequence[str]
    run_dir: str
    state: str
    exit_code: int
    cause: str
    step: int
    best: Optional[Best]
    swept: Sequence[str] = ()
    """In a sweep: the settings in which its jobs differ."""
    before: bool = False
    """True if it had finished before this sweep began, and was not run again."""

    @classmethod
    def from_result(
        cls,
        number: Optional[int],
        overrides: Sequence[str],
        run_dir: Path,
        result: Result,
        before: bool = False,
        swept: Sequence[str] = (),
    ) -> Outcome:
        """Returns the outcome of a job with this result."""
        return cls(
            number,
            list(overrides),
            str(run_dir),
            result.state,
            result.exit_code,
            result.cause,
            result.step,
            result.best,
            list(swept),
            before,
        )


def print_outcome(outcome: Outcome) -> None:
    """Prints to standard error why a job did not finish."""
    if outcome.exit_code == EXIT_FINISHED:
        return
    job = "" if outcome.number is None else f"job {outcome.number} ({', '.join(outcome.overrides)}): "
    print_cause(job + (outcome.cause or outcome.state), outcome.exit_code, outcome.step)


def print_cause(text: str, exit_code: int, step: int = 0) -> None:
    """Prints a cause to standard error, as the last output; its further lines are indented.

    Args:
        text: the cause.
        exit_code: exit code of the process.
        step: steps that the run has taken.
    """
    report_cause(text, step)
    word = "stopped" if exit_code in STOPS else "error"
    first, *more = with_program_name(text).splitlines() or [""]
    indent = " " * len(f"{word}: ")
    sys.stdout.flush()
    print("\n".join([f"{word}: {first}", *(indent + line for line in more)]), file=sys.stderr, flush=True)


def append_outcome(file: Path, outcome: Outcome) -> None:
    """Adds a line to jobs.jsonl; jobs in several processes may do so at once."""
    line = encode_json(asdict(outcome)) + b"\n"
    descriptor = open_file(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        # A single write with O_APPEND, so that lines of several processes do not mix.
        os.write(descriptor, line)
    finally:
        os.close(descriptor)


def read_outcomes(file: Path, start: int, end: Optional[int] = None) -> List[Outcome]:
    """Returns the outcomes from byte `start` on, before byte `end`, by job number. Lines that are none, such as one
    that was half written when the machine stopped, are passed over with a warning."""
    if not file.is_file():
        return []
    with open_regular(file) as (stream, _):
        stream.seek(start)
        lines = stream.read(MAX_TEXT_BYTES if end is None else min(end - start, MAX_TEXT_BYTES)).split(b"\n")
    outcomes = []
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                outcomes.append(_outcome_of(parse_json(line)))
            except ValueError as error:
                log.warning("%s, line %d is no outcome of a job, and is left out: %s.", file, number, error)
    return sorted(outcomes, key=lambda outcome: outcome.number or 0)


def _outcome_of(values: Any) -> Outcome:
    """Reads a line of jobs.jsonl.

    Raises:
        ValueError: the line is not the outcome of a job.
    """
    require_form(values, _FORM)
    if values.get("best") is not None:
        require_form(values["best"], _FORM_OF_BEST, "best")
    return Outcome(**{name: value for name, value in values.items() if name in Outcome.__dataclass_fields__})


def exit_code_of(outcomes: Sequence[Outcome]) -> int:
    """Returns 0 if all finished; otherwise the code of the first failed job, or of the first stopped one."""
    codes = [outcome.exit_code for outcome in outcomes if outcome.exit_code != EXIT_FINISHED]
    return next((code for code in codes if code not in STOPS), codes[0] if codes else EXIT_FINISHED)
