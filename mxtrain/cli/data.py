"""`mxtrain data check` reads everything of a dataset once before training, and lists all that is wrong with it;
`mxtrain data guess` names the dataset that reads a folder; `mxtrain data convert` writes annotated images in another
format; `mxtrain data cache` lists and removes prepared data."""

from __future__ import annotations

from typing import Optional, Sequence

from mxtrain.cli import arguments as command_line
from mxtrain.cli.arguments import Arguments
from mxtrain.cli.artifacts import show_artifacts
from mxtrain.cli.commands import COMMANDS, Command
from mxtrain.cli.settings import split_settings
from mxtrain.composing.composer import Composer
from mxtrain.composing.environment import compose_dataset
from mxtrain.config.options import option_classes
from mxtrain.data.corpus.cached_data import data_cache_folder, list_cached_data, remove_cached_data
from mxtrain.errors import EXIT_FINISHED, ConfigError, DataError, did_you_mean, with_addresses
from mxtrain.terminal.progress import ProgressDisplay
from mxtrain.types import Table, expand_path
from mxtrain.workflows.check_data import CheckDataSettings, check_data_of
from mxtrain.workflows.convert_data import ConvertDataSettings, convert_data_of
from mxtrain.workflows.guess_data import guess_data_of


class DataSettings(CheckDataSettings, ConvertDataSettings):
    """Settings of `data check` and `data convert`, besides overrides, and of `data cache`."""

    remove: Optional[str] = None
    """Entries that `data cache` removes: a key, all, or e.g. 30d for those not used for 30 days."""


COMMAND = Command(
    "data",
    position=200,
    listed="data check [overrides]",
    help="read all of a dataset once, and list what is wrong: file, line, what to do",
    usage="check|guess|convert|cache [setting=value ...] [group=option ...] [group.field=value ...]",
    settings="DataSettings",
    examples=(
        "data check dataset=cifar10 dataset.root=FOLDER",
        "data check dataset=number_table dataset.train=table.csv output=problems.csv",
        "data check dataset=glue ignore=duplicate,short_row",
        "data guess FOLDER",
        "data convert FROM TO to=yolo",
        "data cache remove=30d",
    ),
    subcommands=("check", "guess", "convert", "cache"),
)


def run(arguments: Sequence[str]) -> int:
    """Reads, prints what was found, and returns the exit code.

    Raises:
        DataError: something is wrong with the data; it was printed.
    """
    parsed = command_line.parse(arguments)
    refuse_unknown_arguments(parsed.positionals)
    settings, overrides = split_settings(parsed, DataSettings, "data")
    if parsed.positionals[0] == "cache":
        return show_cache(settings, overrides)
    if parsed.positionals[0] == "guess":
        return guess(parsed, overrides)
    refuse_settings_of_others(parsed.positionals[0], settings)
    if parsed.positionals[0] == "convert":
        return convert(parsed, settings, overrides)
    with Composer(parsed.config_dirs) as composer:
        name, dataset = compose_dataset(composer, overrides)
    with ProgressDisplay() as display:
        found = check_data_of(dataset, name, settings, display)
    if not found.passed:
        print("\n".join(found.problem_lines()), flush=True)
        raise DataError(found.summary())
    print(found.summary())
    show_artifacts(found.counts.tables())
    return EXIT_FINISHED


def guess(parsed: Arguments, overrides: Sequence[str]) -> int:
    """Prints the dataset that reads a folder or a file, and the command to type; returns the exit code.

    Raises:
        ConfigError: there is no path, or an override.
        DataError: no dataset reads it.
    """
    if overrides or len(parsed.positionals) != 2:
        raise ConfigError(
            "data guess takes one folder or file, and no settings, e.g. `python -m mxtrain data guess data/pets`."
        )
    with Composer(parsed.config_dirs) as composer:
        path = expand_path(parsed.positionals[1])
        found = guess_data_of(path, option_classes("dataset"), lambda words: compose_dataset(composer, words)[1])
        print(with_addresses(str(found)))
    return EXIT_FINISHED


def convert(parsed: Arguments, settings: DataSettings, overrides: Sequence[str]) -> int:
    """Converts a dataset, and prints what was written; returns the exit code.

    Raises:
        ConfigError: a path or a setting is missing or wrong.
        DataError: the source cannot be read, or the format cannot hold what is in it.
    """
    if len(parsed.positionals) != 3:
        raise ConfigError(
            "data convert takes two paths, e.g. `python -m mxtrain data convert data/pets data/pets_yolo to=yolo`."
        )
    source, target = (expand_path(path) for path in parsed.positionals[1:])
    chosen = ConvertDataSettings(**{name: getattr(settings, name) for name in ConvertDataSettings.model_fields})
    with Composer(parsed.config_dirs) as composer:
        found = convert_data_of(
            source,
            target,
            chosen,
            overrides,
            option_classes("dataset"),
            lambda words: compose_dataset(composer, words),
            ProgressDisplay(),
        )
    print(with_addresses(str(found)))
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


def refuse_settings_of_others(subcommand: str, settings: DataSettings) -> None:
    """Refuses settings of `data check`, `data convert` and `data cache` that are typed with another of these.

    Raises:
        ConfigError: there is one.
    """
    own = CheckDataSettings.model_fields if subcommand == "check" else ConvertDataSettings.model_fields
    for name, field in DataSettings.model_fields.items():
        if name not in own and getattr(settings, name) != field.default:
            owner = "convert" if name in ConvertDataSettings.model_fields else "cache" if name == "remove" else "check"
            raise ConfigError(f"{name}=... belongs to `data {owner}`.")


def refuse_unknown_arguments(arguments: Sequence[str]) -> None:
    """Checks that exactly one sub-command was typed.

    Raises:
        ConfigError: there is none, several, or an unknown one.
    """
    names = COMMANDS["data"].subcommands
    allowed = f"Sub-commands: {', '.join(names)}, e.g. `python -m mxtrain data check dataset=digits`."
    if not arguments:
        raise ConfigError(f"data takes a sub-command. {allowed}")
    if arguments[0] not in names:
        raise ConfigError(
            f"data: there is no sub-command '{arguments[0]}'.{did_you_mean(arguments[0], names)} {allowed}"
        )
    if len(arguments) > 1 and arguments[0] not in ("guess", "convert"):
        raise ConfigError(
            f"data {arguments[0]} takes only overrides, not '{arguments[1]}'. Name a folder with dataset.root=FOLDER."
        )
