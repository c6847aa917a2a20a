"""`mxtrain score EXPERIMENT` trains a preset of conf/experiment and compares the result with the score in its YAML.

Without a name it lists the presets with a score. Exit code 0: the score was reached. 1: it was not. 2: the preset needs
data or weights that were not given; nothing was started."""

from __future__ import annotations

from typing import Sequence

from mxtrain.cli import arguments as command_line
from mxtrain.cli.commands import Command
from mxtrain.cli.settings import refuse_misspelled_groups, split_settings
from mxtrain.cluster.launch.scored import prepare_score, scores_of
from mxtrain.composing.composer import Composer
from mxtrain.errors import EXIT_CRASHED, EXIT_FINISHED, ConfigError
from mxtrain.workflows.score import ScoreSettings, score_run

COMMAND = Command(
    "score",
    position=110,
    listed="score EXPERIMENT",
    help="train a preset and compare it with the score in its YAML file",
    usage="[EXPERIMENT] [setting=value ...] [group.field=value ...]",
    settings="ScoreSettings",
    examples=("score", "score digits_lenet", "score cifar10_resnet20 dataset.root=FOLDER dir=outputs/resnet20"),
)


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
        run = prepare_score(parsed.positionals, overrides, composer, settings.dir, parsed.config_dirs)
        if overrides:
            print(f"note: the score is that of experiment={run[0]} alone, not of {' '.join(overrides)}", flush=True)
        result = score_run(*run)
    if result.exit_code != EXIT_FINISHED:
        return result.exit_code
    print(result if result.value is None else f"\n{result}")
    return EXIT_FINISHED if result.reached else EXIT_CRASHED


def list_scores(composer: Composer, overrides: Sequence[str]) -> int:
    """Prints the presets with a score; returns the exit code."""
    if overrides:
        raise ConfigError("score takes the name of a preset, e.g. score ppo_pendulum; without one it lists them.")
    for name, score in scores_of(composer).items():
        needs = f"  needs {' '.join(score.needs)}" if score.needs else ""
        print(f"{name:<34} {score.metric} {score.value:g} +- {score.tolerance:g}{needs}")
    return EXIT_FINISHED
