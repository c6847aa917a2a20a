"""Composes, explains and examines descriptions, and data, without training: `compose`, `explain`, `dry_run`,
`check_data`, `guess_data`, `convert_data`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Optional, Sequence, Union

from typing_extensions import Unpack

from mxtrain.api.arguments import AnyPath, optional_path, read_call, text_of_path, without_none
from mxtrain.composing import explain as explanation
from mxtrain.composing.environment import compose_and_check, prepare_environment
from mxtrain.composing.parts import Parts, with_parts
from mxtrain.config.specs import validate_arguments
from mxtrain.errors import ConfigError
from mxtrain.types import expand_path

if TYPE_CHECKING:
    from mxtrain.composing.explain import Explanation
    from mxtrain.types.annotations import Config
    from mxtrain.workflows.check_data import DataCheck
    from mxtrain.workflows.convert_data import DataConversion
    from mxtrain.workflows.dry_run import DryRun
    from mxtrain.workflows.guess_data import DataGuess


@with_parts(Parts)
def compose(*overrides: str, config_dir: Optional[AnyPath] = None, **parts: Unpack[Parts]) -> Config:
    """Returns the checked configuration of a command line with these overrides, as nested dicts.

    Args:
        overrides: as on the command line, e.g. ``"model=resnet"``, ``"optimizer.lr=0.01"``.
        config_dir: folder with further groups and options (``--config-dir``).
        parts: as for `train`.

    Raises:
        ConfigError: an override is wrong, or the settings do not fit each other.

    >>> mxtrain.compose("model=lenet", "optimizer.lr=0.01")["optimizer"]["lr"]
    0.01
    """
    call = read_call(compose, overrides, config_dir, parts)
    with call.composer() as composer:
        return compose_and_check(composer, call.overrides)[0].config


@with_parts(Parts)
def explain(key: str, *overrides: str, config_dir: Optional[AnyPath] = None, **parts: Unpack[Parts]) -> Explanation:
    """Explains a setting: its value, where this came from, what it overrode, and what it means.

    Args:
        key: a setting, e.g. ``"optimizer.lr"``, or a group, e.g. ``"model"``, with all of its settings.
        overrides: as on the command line, e.g. ``"model=resnet"``.
        config_dir: folder with further groups and options.
        parts: as for `train`.

    Returns:
        ``settings``, each with ``path``, ``value``, ``meaning``, ``used`` and ``origins``; of a group also ``chosen``
        and ``options``. Its text is what ``mxtrain explain`` prints.

    Raises:
        ConfigError: there is no such setting, or an override is wrong.

    >>> print(mxtrain.explain("optimizer.lr", "model=resnet"))
    >>> mxtrain.explain("trainer.max_epochs").settings[0].value
    """
    if not isinstance(key, str):
        raise ConfigError(f'explain: key={key!r:.60}: it must be the name of a setting, such as "optimizer.lr".')
    call = read_call(explain, overrides, config_dir, parts)
    with call.composer() as composer:
        return explanation.explain(key, composer.compose(call.overrides))


@with_parts(Parts)
def dry_run(*overrides: str, config_dir: Optional[AnyPath] = None, **parts: Unpack[Parts]) -> DryRun:
    """Opens the data, builds the network, and estimates memory and time of a run. Trains nothing and writes no files.

    Args:
        overrides: as on the command line.
        config_dir: folder with further groups and options.
        parts: as for `train`.

    Returns:
        ``rows``, pairs of a name and a text, and ``warnings``; its text is what ``--dry-run`` prints.

    Raises:
        ConfigError: the description or an object is wrong.
        DataError: the data are wrong.

    >>> print(mxtrain.dry_run("model=resnet", "dataset.batch_size=256"))
    """
    call = read_call(dry_run, overrides, config_dir, parts)
    with call.composer() as composer:
        _, description = compose_and_check(composer, call.overrides)
        prepare_environment(description)
        from mxtrain.workflows import dry_run as workflow  # imports MXNet: only from here on

        return workflow.dry_run(description)


@with_parts(Parts)
def check_data(
    *overrides: str,
    ignore: Union[str, Sequence[str]] = (),
    output: Optional[AnyPath] = None,
    config_dir: Optional[AnyPath] = None,
    **parts: Unpack[Parts],
) -> DataCheck:
    """Reads everything of a dataset once, and collects all that is wrong with it, as ``mxtrain data check``.

    Problems are the result, not an error: see `DataCheck.passed`. MXNet is not needed.

    Args:
        overrides: the dataset and its settings, e.g. ``"dataset=cifar10"``, ``"dataset.root=FOLDER"``.
        ignore: kinds of problems that do not count, e.g. ``["duplicate", "empty_text"]``.
        output: file for all problems: CSV if its name ends so, else a JSON object a line.
        config_dir: folder with further groups and options.
        parts: as for `train`, e.g. ``dataset=(x, y)``.

    Returns:
        ``passed``, ``num_problems`` of each kind, the first 20 ``problems`` of each kind, with ``kind``, ``location``,
        ``fact`` and ``remedy``, and ``counts.num_samples`` of each split.

    Raises:
        ConfigError: an override or a kind is wrong.
        DataError: the file cannot be written.

    >>> found = mxtrain.check_data("dataset=digits")
    >>> found.passed, found.num_problems, found.counts.num_samples
    """
    from mxtrain.composing.environment import compose_dataset
    from mxtrain.workflows.check_data import CheckDataSettings, check_data_of

    call = read_call(check_data, overrides, config_dir, parts)
    listed = [ignore] if isinstance(ignore, str) else ignore
    if not isinstance(listed, Sequence) or not all(isinstance(kind, str) for kind in listed):
        raise ConfigError(f"check_data: ignore={ignore!r:.60}: give a kind of problem, or a list of kinds.")
    kinds = ",".join(listed)
    values = without_none(ignore=kinds, output=optional_path(output, "check_data: output"))
    settings = validate_arguments(CheckDataSettings, values, "check_data")
    with call.composer() as composer:
        name, dataset = compose_dataset(composer, call.overrides)
        return check_data_of(dataset, name, settings)


def guess_data(path: AnyPath, *, config_dir: Optional[AnyPath] = None) -> DataGuess:
    """Names the dataset that reads a folder or a file, with counts and the command to type, as ``mxtrain data guess``.

    Args:
        path: the folder or file.
        config_dir: folder with further groups and options; its datasets are asked, too.

    Returns:
        ``forms`` by decreasing certainty, each with ``option``, ``form``, ``counts``, ``class_names``, ``splits``,
        ``num_problems``, ``remark``, ``overrides`` and ``command``; ``best`` is the first.

    Raises:
        ConfigError: an argument is wrong.
        DataError: there is no such path, or no dataset reads it.

    >>> guess = mxtrain.guess_data("pets")
    >>> mxtrain.train(*guess.best.overrides)
    """
    from mxtrain.composing.environment import compose_dataset
    from mxtrain.config.options import option_classes
    from mxtrain.workflows.guess_data import guess_data_of

    name = expand_path(text_of_path(path, "guess_data: path"))
    with read_call(guess_data, (), config_dir).composer() as composer:
        return guess_data_of(name, option_classes("dataset"), lambda words: compose_dataset(composer, words)[1])


def convert_data(
    source: AnyPath,
    target: AnyPath,
    *overrides: str,
    to: str,
    images: str = "copy",
    drop: Union[str, Sequence[str]] = (),
    config_dir: Optional[AnyPath] = None,
) -> DataConversion:
    """Writes annotated images in another format, reads them again and compares, as ``mxtrain data convert``.

    Args:
        source: folder or file of the data.
        target: folder that is written. It may not exist; a conversion that was interrupted goes on.
        overrides: the dataset that reads the source if it is not recognised, and its settings, e.g. ``"dataset=cvat"``.
        to: the format: ``"coco"``, ``"voc"``, ``"yolo"``, ``"records"`` or ``"image_folder"``.
        images: ``"copy"`` or ``"link"``.
        drop: content that may be left out if the format cannot hold it, e.g. ``["masks", "crowds"]``.
        config_dir: folder with further groups and options.

    Returns:
        ``num_images`` of each split, ``num_objects``, ``class_names``, ``largest_difference`` in pixels, ``dropped``,
        ``notes``, ``duration_s``, ``overrides`` and ``command``. Its text is what ``mxtrain data convert`` prints.

    Raises:
        ConfigError: an argument is wrong, or the target exists.
        DataError: the source cannot be read, the format cannot hold it, or what was written differs from the source.

    >>> result = mxtrain.convert_data("pets", "pets_records", to="records")
    >>> mxtrain.train(*result.overrides)
    """
    from mxtrain.composing.environment import compose_dataset
    from mxtrain.config.options import option_classes
    from mxtrain.workflows.convert_data import ConvertDataSettings, convert_data_of

    call = read_call(convert_data, overrides, config_dir)
    listed = [drop] if isinstance(drop, str) else drop
    if not isinstance(listed, Sequence) or not all(isinstance(kind, str) for kind in listed):
        raise ConfigError(f"convert_data: drop={drop!r:.60}: give a kind of content, or a list of kinds.")
    values = {"to": to, "images": images, "drop": ",".join(listed)}
    settings = validate_arguments(ConvertDataSettings, values, "convert_data")
    names = [
        expand_path(text_of_path(path, f"convert_data: {name}"))
        for name, path in (("source", source), ("target", target))
    ]
    with call.composer() as composer:
        return convert_data_of(
            names[0],
            names[1],
            settings,
            call.overrides,
            option_classes("dataset"),
            lambda words: compose_dataset(composer, words),
        )
