"""`data check`: reads everything of a dataset once, and collects all that is wrong with it."""

from __future__ import annotations

import csv
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Callable, Iterator, List, Mapping, Optional, Sequence

from mxtrain.data.checking.dataset_check import CollectedFindings, DatasetCounts, check_dataset
from mxtrain.data.checking.problems import CANNOT_OPEN, KINDS, PROBLEM_COLUMNS, Problem
from mxtrain.data.spec import BaseDataset
from mxtrain.errors import ConfigError, did_you_mean
from mxtrain.files.durable import encode_json
from mxtrain.runtime.cores import usable_cores
from mxtrain.terminal.durations import format_seconds
from mxtrain.terminal.progress import SILENT, WorkProgress
from mxtrain.terminal.tables import on_one_line
from mxtrain.types import Spec
from mxtrain.workflows.output_file import OutputFile, open_output_file


class CheckDataSettings(Spec):
    """Settings of `data check`, besides overrides."""

    output: Optional[OutputFile] = None
    """File for all problems: CSV where its name ends so, else a JSON object a line."""
    ignore: str = ""
    """Kinds of problems that do not count, commas between them, e.g. duplicate,empty_text."""


@dataclass(frozen=True)
class DataCheck:
    """Result of `check_data`; its text lists the problems by kind.

    Attributes:
        name: the dataset, e.g. ``"dataset=digits"``.
        counts: ``num_samples`` of each split, ``class_names`` and ``class_counts``.
        num_problems: number of problems of each kind.
        problems: the first 20 problems of each kind, with ``kind``, ``location``, ``fact`` and ``remedy``.
        num_ignored: number of problems of each ignored kind.
        duration_s: how long it took, in seconds.
        output: file with all problems; None if none was written.
    """

    name: str
    counts: DatasetCounts
    num_problems: Mapping[str, int]
    problems: Sequence[Problem]
    num_ignored: Mapping[str, int]
    duration_s: float
    output: Optional[str]

    @property
    def passed(self) -> bool:
        """True if nothing is wrong, except ignored kinds."""
        return not self.num_problems

    def problem_lines(self) -> List[str]:
        """Returns the problems by kind: the first facts of each, and the advice."""
        lines: List[str] = []
        for kind, count in self.num_problems.items():
            shown = [problem for problem in self.problems if problem.kind == kind]
            lines.append(f"{kind}: {count:,}")
            lines += [f"  {on_one_line(problem.fact)}" for problem in shown]
            if count > len(shown):
                hint = f" in {self.output}" if self.output else "; output=FILE lists all"
                lines.append(f"  and {count - len(shown):,} more{hint}")
            lines += [f"  -> {remedy}" for remedy in dict.fromkeys(problem.remedy for problem in shown) if remedy]
        return lines

    def summary(self) -> str:
        """Returns a line about the whole dataset."""
        if self.passed:
            counts = ", ".join(f"{split} {count:,}" for split, count in self.counts.num_samples.items())
            ignored = "".join(f", {count:,} {kind} ignored" for kind, count in self.num_ignored.items())
            took = format_seconds(self.duration_s)
            return f"{self.name}: nothing is wrong{ignored} ({counts} samples, read in {took})"
        count = sum(self.num_problems.values())
        problems = "1 problem" if count == 1 else f"{count:,} problems"
        hint = f"; all are listed in {self.output}" if self.output else ""
        return f"{self.name} has {problems}, listed above by kind{hint}."

    def __str__(self) -> str:
        return "\n".join([*self.problem_lines(), self.summary()])

    __repr__ = __str__


def check_data_of(
    dataset: BaseDataset, name: str, settings: CheckDataSettings, progress: WorkProgress = SILENT
) -> DataCheck:
    """Reads every sample of a dataset once, in several threads.

    Args:
        dataset: the dataset.
        name: its name, for messages.
        settings: ignored kinds, and the file for all problems.
        progress: receives the progress.

    Raises:
        ConfigError: there is no such kind of problem.
        DataError: the file cannot be written.
    """
    ignored = ignored_kinds(settings.ignore, dataset)
    began_s = time.monotonic()
    with writer_of(settings.output) as write:
        findings = CollectedFindings(ignored, write)
        counts = check_dataset(dataset, findings, progress, usable_cores())
    problems = [problem for shown in findings.shown.values() for problem in shown]
    duration_s = time.monotonic() - began_s
    return DataCheck(name, counts, findings.counts, problems, findings.ignored, duration_s, settings.output)


def ignored_kinds(text: str, dataset: BaseDataset) -> List[str]:
    """Returns the kinds in a setting.

    Raises:
        ConfigError: there is no such kind.
    """
    allowed = [kind for kind in (*KINDS, *dataset.data_checks.kinds) if kind != CANNOT_OPEN]
    kinds = [kind.strip() for kind in text.strip("[]").split(",") if kind.strip()]
    for kind in kinds:
        if kind not in allowed:
            raise ConfigError(
                f"ignore={kind}: there is no such kind of problem.{did_you_mean(kind, allowed)} It can be: "
                f"{', '.join(allowed)}."
            )
    return kinds


@contextmanager
def writer_of(name: Optional[str]) -> Iterator[Callable[[Problem], object]]:
    """Yields a function that writes a problem to the file `name`; if that is None, it does nothing."""
    if name is None:
        yield lambda problem: None
        return
    with open_output_file(name) as stream:
        if name.endswith(".csv"):
            table = csv.writer(stream)
            table.writerow(PROBLEM_COLUMNS)
            yield lambda problem: table.writerow(problem.to_row().values())
        else:
            yield lambda problem: stream.write(encode_json(problem.to_row()).decode() + "\n")
