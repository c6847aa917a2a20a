"""`mxtrain score EXPERIMENT` trains a preset of conf/experiment and compares the result with the score in its YAML.

Without a name it lists the presets with a score. Exit code 0: the score was reached. 1: it was not. 2: the preset needs
data or weights that were not given; nothing was started."""

from __future__ import annotations

from pathlib import Path
from typing import List, Optional, Sequence, Tuple

from mxtrain.archive.run_files import STATUS_FILE
from mxtrain.archive.score import Score, read_score
from mxtrain.cluster.launch.sweep import direction_of, refuse_missing_data
from mxtrain.composing import arguments as command_line
from mxtrain.composing.composer import Composer
from mxtrain.composing.environment import compose_and_check
from mxtrain.composing.settings import refuse_misspelled_groups, split_settings
from mxtrain.config.groups import Description
from mxtrain.config.override_text import key_of, quote
from mxtrain.config.specs import flatten
from mxtrain.errors import EXIT_CRASHED, EXIT_FINISHED, ConfigError, DataError, did_you_mean
from mxtrain.files.json_text import read_json
from mxtrain.types import PathText, Spec

EXPERIMENT = "experiment"


class ScoreSettings(Spec):
    """Settings of `score`, besides overrides."""

    dir: Optional[PathText] = None
    """The run directory; by default outputs/DATE/TIME. The same command continues there after an interruption."""


def run(arguments: Sequence[str]) -> int:
    """Lists scores, or trains and compares; returns the exit code."""
    parsed = command_line.parse(arguments)
    settings, overrides = split_settings(parsed, ScoreSettings, "score")
    refuse_misspelled_groups(overrides, "score", parsed.config_dirs)
    if parsed.multirun:
        raise ConfigError("score trains one preset: leave out -m.")
    with Composer(parsed.config_dirs) as composer:
        if not parsed.positionals:
            return list_scores(composer, overrides)
        name, score = find_score(parsed.positionals, composer)
        refuse_missing_needs(name, score, overrides)
        words = [f"{EXPERIMENT}={name}", *overrides]
        if "trainer.seed" not in map(key_of, overrides):
            words.append(f"trainer.seed={score.seed}")
        if settings.dir is not None:
            words.append(f"hydra.run.dir={quote(settings.dir)}")
        composed, description = compose_and_check(composer, words)
        refuse_unmeasured(name, score, description)
        try:
            refuse_missing_data(description.dataset)
        except DataError as error:
            raise DataError(f"{error} {needs_of(name, score)}".rstrip()) from None
        if overrides:
            print(f"note: the score is that of experiment={name} alone, not of {' '.join(overrides)}", flush=True)
        # Takes time to load: only from here on.
        from mxtrain.cluster.launch.run import train_once

        outcome = train_once(composed, description, command_line.config_flags(parsed.config_dirs))
    if outcome.exit_code != EXIT_FINISHED:
        return outcome.exit_code
    return compare(name, score, Path(outcome.run_dir), direction_of(description, score.metric, "score.metric"))


def list_scores(composer: Composer, overrides: Sequence[str]) -> int:
    """Prints the presets with a score; returns the exit code."""
    if overrides:
        raise ConfigError("score takes the name of a preset, e.g. score ppo_pendulum; without one it lists them.")
    for name in composer.options(EXPERIMENT):
        score = _score_of(name, composer)
        if score is not None:
            needs = f"  needs {' '.join(score.needs)}" if score.needs else ""
            print(f"{name:<34} {score.metric} {score.value:g} +- {score.tolerance:g}{needs}")
    return EXIT_FINISHED


def find_score(names: Sequence[str], composer: Composer) -> Tuple[str, Score]:
    """Returns the preset that was named, and its score. Raises: ConfigError: there is none, or more than one."""
    name, *more = [word.partition("=")[2] or word for word in names]
    options = composer.options(EXPERIMENT)
    scored = [option for option in options if option == name or _score_of(option, composer) is not None]
    if more:
        raise ConfigError(f"score takes one preset, not also '{more[0]}'.")
    if name not in options:
        raise ConfigError(
            f"there is no preset '{name}'.{did_you_mean(name, options)} Presets with a score: {', '.join(scored)}."
        )
    score = _score_of(name, composer)
    if score is None:
        raise ConfigError(
            f"experiment={name} has no score: nobody has published or measured one. Presets with a score: "
            f"{', '.join(one for one in scored if one != name)}."
        )
    return name, score


def _score_of(name: str, composer: Composer) -> Optional[Score]:
    file = composer.find_file(f"{EXPERIMENT}/{name}")
    return None if file is None else read_score(file)


def refuse_missing_needs(name: str, score: Score, overrides: Sequence[str]) -> None:
    """Checks that all settings that the preset needs were typed. Their paths are checked when the data are opened.

    Raises:
        ConfigError: a setting is missing.
    """
    missing = [key for key in score.needs if key not in map(key_of, overrides)]
    if missing:
        raise ConfigError(f"{', '.join(missing)}: not given. {needs_of(name, score)}")


def needs_of(name: str, score: Score) -> str:
    """Returns a sentence that says what the preset needs; empty if it needs nothing."""
    if not score.needs:
        return ""
    return f"experiment={name} needs {'; '.join(f'{key}: {need}' for key, need in score.needs.items())}."


def refuse_unmeasured(name: str, score: Score, description: Description) -> None:
    """Checks that the run computes the metric.

    Raises:
        ConfigError: it does not.
    """
    split, metric = score.metric.split("/", 1)
    if metric != "loss" and metric not in description.metric:
        raise ConfigError(
            f"experiment={name} is scored by {score.metric}, which is not measured here. Measured are: "
            f"{', '.join(description.metric)}."
        )
    if split == "test" and not description.trainer.test:
        raise ConfigError(f"experiment={name} is scored on the test split: leave out trainer.test=false.")


def compare(name: str, score: Score, run_dir: Path, direction: str) -> int:
    """Prints the verdict; returns the exit code."""
    value = read_value(run_dir, score.metric)
    if value is None:
        print(f"NOT reached: {run_dir}/{STATUS_FILE} has no {score.metric}")
        return EXIT_CRASHED
    worse = score.value - value if direction == "max" else value - score.value
    passed = worse <= score.tolerance
    relation = "better" if worse < 0 else "worse"
    verdict = "the score was reached" if passed else "the score was NOT reached"
    print(
        f"\n{name}: {score.metric} {value:.6g}, in its YAML file {score.value:g} with tolerance {score.tolerance:g} "
        f"({score.source}): {verdict} ({abs(worse):.3g} {relation})"
    )
    return EXIT_FINISHED if passed else EXIT_CRASHED


def read_value(run_dir: Path, metric: str) -> Optional[float]:
    """Returns a final value of a finished run. Values of the best checkpoint's validation are those of `best`."""
    status = read_json(run_dir / STATUS_FILE)
    best = status.get("best") or {}
    if best.get("metric") == metric:
        return float(best["value"])
    values: List[object] = [flatten(status.get("metrics") or {}).get(metric)]
    return float(values[0]) if isinstance(values[0], (int, float)) else None
