"""`mxtrain data check` reads everything of a dataset once before training, and lists all that is wrong with it;
`mxtrain data cache` lists and removes prepared data."""

from __future__ import annotations

import csv
import time
from contextlib import contextmanager
from typing import Callable, Iterator, List, Optional, Sequence

from mxtrain.cli.artifacts import show_artifacts
from mxtrain.cli.commands import COMMANDS
from mxtrain.composing import arguments as command_line
from mxtrain.composing.composer import Composer
from mxtrain.composing.environment import compose_and_check
from mxtrain.composing.settings import split_settings
from mxtrain.data.checking.dataset_check import CollectedFindings, DatasetCounts, check_dataset
from mxtrain.data.checking.problems import CANNOT_OPEN, KINDS, PROBLEM_COLUMNS, Problem
from mxtrain.data.corpus.cached_data import data_cache_folder, list_cached_data, remove_cached_data
from mxtrain.data.spec import BaseDataset
from mxtrain.errors import EXIT_FINISHED, ConfigError, DataError, did_you_mean
from mxtrain.files.durable import encode_json
from mxtrain.runtime.cores import usable_cores
from mxtrain.terminal.durations import format_seconds
from mxtrain.terminal.progress import ProgressDisplay
from mxtrain.terminal.tables import on_one_line
from mxtrain.types import Spec, Table
from mxtrain.workflows.output_file import OutputFile, open_output_file


class DataSettings(Spec):
    """Settings of `data check`, besides overrides, and of `data cache`."""

    output: Optional[OutputFile] = None
    """File for all problems: CSV where its name ends so, else a JSON object a line."""
    ignore: str = ""
    """Kinds of problems that do not count, commas between them, e.g. duplicate,empty_text."""
    remove: Optional[str] = None
    """Of data cache: what to remove: a key, all, or e.g. 30d for what was not used for 30 days."""


def run(arguments: Sequence[str]) -> int:
    """Reads, prints what was found, and returns the exit code.

    Raises:
        DataError: something is wrong with the data; it was printed.
    """
    parsed = command_line.parse(arguments)
    refuse_unknown_words(parsed.positionals)
    settings, overrides = split_settings(parsed, DataSettings, "data")
    if parsed.positionals[0] == "cache":
        return show_cache(settings, overrides)
    if settings.remove is not None:
        raise ConfigError("remove=... belongs to `data cache`.")
    with Composer(parsed.config_dirs) as composer:
        composed, description = compose_and_check(composer, overrides, together=False)  # no model has to fit
        name = f"dataset={','.join(composed.chosen('dataset'))}"
    ignored = ignored_kinds(settings.ignore, description.dataset)
    began_s = time.monotonic()
    with writer_of(settings.output) as write, ProgressDisplay() as display:
        findings = CollectedFindings(ignored, write)
        census = check_dataset(description.dataset, findings, display, usable_cores())
    if findings.counts:
        print("\n".join(problem_lines(findings, settings.output)), flush=True)
        count = sum(findings.counts.values())
        problems = "1 problem" if count == 1 else f"{count:,} problems"
        hint = f"; all are listed in {settings.output}" if settings.output else ""
        raise DataError(f"{name} has {problems}, listed above by kind{hint}.")
    print(summary(name, census, findings, time.monotonic() - began_s))
    show_artifacts(census.tables())
    return EXIT_FINISHED


def show_cache(settings: DataSettings, overrides: Sequence[str]) -> int:
    """Lists prepared data, or removes some of it; returns the exit code.

    Raises:
        ConfigError: there is no such data, or it takes no such setting.
        DataError: there is no cache.
    """
    if overrides or settings.output or settings.ignore:
        raise ConfigError("data cache takes only remove=KEY, remove=all or e.g. remove=30d.")
    try:
        kept = list_cached_data() if settings.remove is None else remove_cached_data(settings.remove)
        folder = data_cache_folder()
    except (OSError, RuntimeError, KeyError) as error:
        raise DataError(f"There is no cache that can be used: {error}.") from error
    size = sum(one.num_bytes for one in kept)
    did = "removed from" if settings.remove is not None else "in"
    print(f"{size / 1e6:,.0f} MB of prepared data {did} {folder}")
    rows = [[one.key, one.what, f"{one.num_bytes / 1e6:,.0f} MB", f"{one.unused_days:.0f}"] for one in kept]
    show_artifacts([Table("prepared data", ["key", "what", "size", "unused, days"], rows)] if rows else [])
    return EXIT_FINISHED


def refuse_unknown_words(words: Sequence[str]) -> None:
    """Checks that exactly one sub-command was typed.

    Raises:
        ConfigError: there is none, several, or an unknown one.
    """
    names = COMMANDS["data"].subcommands
    allowed = f"Sub-commands: {', '.join(names)}, e.g. `python -m mxtrain data check dataset=digits`."
    if not words:
        raise ConfigError(f"data takes a sub-command. {allowed}")
    if words[0] not in names:
        raise ConfigError(f"data: there is no sub-command '{words[0]}'.{did_you_mean(words[0], names)} {allowed}")
    if len(words) > 1:
        raise ConfigError(
            f"data {words[0]} takes only overrides, not '{words[1]}'. Name a folder with dataset.root=FOLDER."
        )


def ignored_kinds(text: str, dataset: BaseDataset) -> List[str]:
    """Returns the kinds in a setting.

    Raises:
        ConfigError: there is no such kind.
    """
    allowed = [kind for kind in (*KINDS, *dataset.problem_kinds) if kind != CANNOT_OPEN]
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


def problem_lines(findings: CollectedFindings, output: Optional[str]) -> List[str]:
    """Returns the findings by kind: the first facts of each, and the advice."""
    lines: List[str] = []
    for kind, count in findings.counts.items():
        shown = findings.shown[kind]
        lines.append(f"{kind}: {count:,}")
        lines += [f"  {on_one_line(problem.fact)}" for problem in shown]
        if count > len(shown):
            hint = f" in {output}" if output else "; output=FILE lists all"
            lines.append(f"  and {count - len(shown):,} more{hint}")
        lines += [f"  -> {remedy}" for remedy in dict.fromkeys(problem.remedy for problem in shown) if remedy]
    return lines


def summary(name: str, census: DatasetCounts, findings: CollectedFindings, took_s: float) -> str:
    """Returns the line about a dataset with which nothing is wrong."""
    counts = ", ".join(f"{split} {count:,}" for split, count in census.num_samples.items())
    ignored = "".join(f", {count:,} {kind} ignored" for kind, count in findings.ignored.items())
    return f"{name}: nothing is wrong{ignored} ({counts} samples, read in {format_seconds(took_s)})"
