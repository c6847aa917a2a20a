"""Composes and checks studies of `tune`: new studies, and studies read from a folder, which may be untrusted."""

from __future__ import annotations

import os
import shlex
import uuid
from contextlib import nullcontext
from typing import Callable, ContextManager, Dict, Iterator, List, Sequence, Tuple

from mxtrain.cluster.launch.sweep import compose_one, direction_of
from mxtrain.composing.composer import Composer
from mxtrain.composing.mistakes import WrongOverrides
from mxtrain.composing.ranges import split_space
from mxtrain.composing.untrusted_overrides import refuse_overrides, require_trusted_overrides
from mxtrain.config.groups import Description
from mxtrain.config.override_text import config_flags, key_of
from mxtrain.config.secret_values import hide_secrets
from mxtrain.config.specs import shown
from mxtrain.errors import ConfigError, DataError, did_you_mean
from mxtrain.files.text_lines import printable_line
from mxtrain.terminal.progress import SILENT, WorkProgress
from mxtrain.tuning.folder import STUDY_FILE, StudyDescription, StudyFolder
from mxtrain.tuning.population import check_population
from mxtrain.tuning.samplers import check_sampler
from mxtrain.tuning.space import Space, Value, Values, overrides_of_trial, setting_of
from mxtrain.tuning.spec import TuneSettings, first_rung
from mxtrain.tuning.trials import SPEED, open_storage, require_sampler_libraries

DEFAULT_TRIALS = 20
Display = Callable[[], ContextManager[WorkProgress]]
"""Opens a display of the progress of the checks."""


def no_display() -> ContextManager[WorkProgress]:
    """Shows nothing."""
    return nullcontext(SILENT)


SET_BY_STUDY = {
    "hydra.run.dir": "each trial has its own, below the study's folder",
    "hydra.sweep.dir": "the study's folder is named first: tune FOLDER",
    "hydra.mode": "a study chooses its trials itself",
    "trainer.epoch_budget": "the pruner sets it, for each rung; min_epochs=N is the first one",
    "checkpoint.resume": "a study continues its trials itself",
}
"""Setting -> reason why it cannot be typed: a study sets it for its trials."""
NEED_WHOLE_LENGTH = ("trainer.max_epochs", "trainer.max_steps", "trainer.val_interval", "trainer.val_interval_unit")


def open_study(
    folder: StudyFolder,
    settings: TuneSettings,
    given_keys: Sequence[str],
    config_dirs: Sequence[str] = (),
    trust_code: bool = False,
) -> StudyDescription:
    """Returns the description of a study that is continued; see `read_trusted_study`.

    Args:
        folder: folder of the study.
        settings: settings of the command.
        given_keys: names of the settings that were given.
        config_dirs: folders of the user's own groups and options.
        trust_code: whether code that only the study names may run.

    Raises:
        ConfigError: settings differ from those of the study, or it is not trusted.
    """
    refuse_other_settings(folder, settings, given_keys)
    return read_trusted_study(folder, settings, config_dirs, trust_code)


def read_trusted_study(
    folder: StudyFolder, settings: TuneSettings, config_dirs: Sequence[str] = (), trust_code: bool = False
) -> StudyDescription:
    """Returns the description of a study in an untrusted folder.

    The caller must train this description and not read study.json again, because the file may change.

    Args:
        folder: folder of the study.
        settings: settings of the command.
        config_dirs: folders of the user's own groups and options.
        trust_code: whether code that only the study names may run.

    Raises:
        ConfigError: the study would run code, or write to places, that only its file names, without --trust-code.
    """
    description = folder.read()
    folder.refuse_links()
    require_trusted_storage(folder, description, settings, trust_code)
    if trust_code:
        return description
    file = str(folder.path / STUDY_FILE)
    place = description.working_folder
    flags = config_flags([os.path.abspath(path) for path in config_dirs])
    if [*description.flags[:1], *(os.path.join(place, path) for path in description.flags[1:])] != flags:
        refuse_overrides([shlex.join(description.flags)] if description.flags else [], file)
        raise ConfigError(f"--config-dir {config_dirs[0]}: the study in {folder.path} has none. Leave it out.")
    space = description.space
    first = overrides_of_trial(space.edges()[0])
    alternatives = [
        word
        for one in space.parameters
        for value in one.choices or (one.low, one.high)
        for word in overrides_of_trial({one.key: value})
    ]
    with Composer(config_dirs) as composer:
        words = [*description.overrides, *first]
        # Values of the ranges are checked, too, because a choice can name a class just as a fixed override can.
        require_trusted_overrides(composer, words, alternatives, file, "tune", config_dirs)
    return description


def require_trusted_storage(
    folder: StudyFolder, description: StudyDescription, settings: TuneSettings, trust_code: bool
) -> None:
    """Refuses to create or connect to a database that only study.json names.

    Raises:
        ConfigError: it names one that was not typed, without --trust-code.
    """
    storage = description.settings.storage
    if storage is not None and settings.storage is None and not trust_code:
        raise ConfigError(
            # The address of a database may contain a password.
            hide_secrets(
                f"the study in {folder.path} is kept in the database {printable_line(storage, 200)}, which only "
                f"{STUDY_FILE} names. If it is yours, type the same storage=... again, or add --trust-code."
            )
        )


def refuse_other_settings(folder: StudyFolder, settings: TuneSettings, given_keys: Sequence[str]) -> None:
    """Rejects settings that differ from those of an existing study.

    Args:
        folder: folder of the study.
        settings: settings of the command.
        given_keys: names of the settings that were given.

    Raises:
        ConfigError: some differ; the message lists them.
    """
    kept = folder.read().settings
    names = [name for name in given_keys if name != "n_trials" and getattr(settings, name) != getattr(kept, name)]
    if names:
        has = ", ".join(f"{name}={shown(getattr(kept, name))}" for name in names)
        given = ", ".join(f"{name}={shown(getattr(settings, name))}" for name in names)
        raise ConfigError(
            hide_secrets(
                f"the study in {folder.path} has {has}, and only n_trials may change. Leave out {given}, or name "
                "another folder for another study, with its ranges."
            )
        )


# A new study.


def begin_study(
    folder: StudyFolder,
    settings: TuneSettings,
    overrides: Sequence[str],
    config_dirs: Sequence[str] = (),
    display: Display = no_display,
) -> StudyDescription:
    """Checks the whole space and makes the study's folder; one that exists must be the same study. Returns its
    description.

    Raises:
        ConfigError: the study is invalid; the message lists all problems, and nothing was written.
    """
    folder.refuse_other_content()
    require_sampler_libraries(settings.sampler)
    with Composer(config_dirs) as composer:
        description = describe_study(composer, settings, overrides, config_flags(config_dirs), display)
    if settings.storage is not None:
        open_storage(folder, settings.storage)  # fails before anything is written, if the database cannot be used
    return folder.create(description)


def describe_study(
    composer: Composer,
    settings: TuneSettings,
    overrides: Sequence[str],
    flags: Sequence[str],
    display: Display = no_display,
) -> StudyDescription:
    """Returns the description of a study, after its whole space was composed and validated.

    Raises:
        ConfigError: the study is invalid; the message lists all problems.
    """
    for word in overrides:
        if key_of(word) in SET_BY_STUDY:
            raise ConfigError(f"{word}: {SET_BY_STUDY[key_of(word)]}. Leave it out.")
    fixed, space = split_space(composer, overrides, settings.space or "")
    if not space.parameters:
        raise ConfigError(
            "nothing differs between the trials: give at least one setting a range, e.g. 'optimizer.lr=log(1e-4,1e-1)'."
        )
    objectives = [word.strip() for word in (settings.objectives or "").split(",") if word.strip()]
    if len(objectives) == 1 and objectives[0] != SPEED:
        fixed = [*(word for word in fixed if key_of(word) != "trainer.monitor"), f"trainer.monitor={objectives[0]}"]
    check_sampler(settings, space, len(objectives) or 1)
    if settings.sampler == "pbt":
        check_population(settings, space)
    first = check_space(composer, fixed, space, display)
    objectives = objectives or [first.trainer.monitor]
    refuse_unknown_length(settings, first, space)
    if not first.checkpoint.saves:
        raise ConfigError("checkpoint=off: a trial that is stopped could not be continued. Leave it out.")
    total = settings.n_trials or (len(space.grid()) if settings.sampler == "grid" else DEFAULT_TRIALS)
    if settings.sampler == "grid" and total > len(space.grid()):
        raise ConfigError(f"n_trials={total}: the grid has {len(space.grid())} combinations. Leave n_trials out.")
    return StudyDescription(
        name=f"study-{uuid.uuid4().hex[:8]}",
        flags=list(flags),
        overrides=fixed,
        working_folder=os.getcwd(),
        settings=settings.model_copy(update={"n_trials": total}),
        space=space,
        objectives=objectives,
        directions=[direction_for(first, name) for name in objectives],
        max_epochs=first.trainer.max_epochs,
        val_interval=val_interval_of(settings, first),
    )


def direction_for(description: Description, name: str) -> str:
    """Returns the better direction of an objective, "max" or "min".

    Raises:
        ConfigError: the objective is not measured.
    """
    if name == SPEED:
        return "max"
    allowed = [*(f"val/{metric}" for metric in ("loss", *description.metric)), SPEED, description.trainer.monitor]
    if name not in allowed:
        raise ConfigError(
            f"objectives={name}: it is not measured.{did_you_mean(name, allowed)} Measured are: "
            f"{', '.join(dict.fromkeys(allowed))}."
        )
    return direction_of(description, name, "objectives")


def refuse_unknown_length(settings: TuneSettings, description: Description, space: Space) -> None:
    """Checks that pruners and population-based training know the length of a whole trial.

    Raises:
        ConfigError: the length is unknown, or differs between trials.
    """
    if settings.pruner == "none" and settings.sampler != "pbt":
        return
    chosen = f"pruner={settings.pruner}" if settings.pruner != "none" else "sampler=pbt"
    if description.trainer.max_epochs is None:
        raise ConfigError(f"{chosen}: the rungs are parts of trainer.max_epochs, which is null. Give it a number.")
    if description.trainer.max_steps is not None:
        raise ConfigError(
            f"trainer.max_steps={description.trainer.max_steps}: with {chosen} the whole length is "
            "trainer.max_epochs. Leave it out."
        )
    for parameter in space.parameters:
        if setting_of(parameter.key) in NEED_WHOLE_LENGTH:
            raise ConfigError(
                f"{setting_of(parameter.key)}: with {chosen} all trials have the same length and validations. "
                "Give it one value."
            )
    first = first_rung(settings, description.trainer.max_epochs, val_interval_of(settings, description))
    if settings.min_steps is None and first >= description.trainer.max_epochs:
        raise ConfigError(
            f"min_epochs={first}: the first rung must be shorter than "
            f"trainer.max_epochs={description.trainer.max_epochs}. Give more epochs."
        )


def val_interval_of(settings: TuneSettings, description: Description) -> int:
    """Returns the interval of validations in the unit of the rungs; 1 if it has another unit."""
    trainer = description.trainer
    is_in_steps = trainer.val_interval_unit == "steps"
    return trainer.val_interval if is_in_steps == (settings.min_steps is not None) else 1


def check_space(composer: Composer, fixed: Sequence[str], space: Space, display: Display = no_display) -> Description:
    """Composes and validates the edges of every range; returns the first description.

    Raises:
        ConfigError: some are invalid; the message lists all problems.
    """
    descriptions: List[Description] = []
    wrong: Dict[str, None] = {}
    misnamed: List[Dict[str, Value]] = []  # options of groups with which a name does not exist
    tried: List[Tuple[Values, List[str]]] = []
    assignments = space.edges()
    with display() as progress:
        progress.begin("checking the values of all ranges:", len(assignments))
        for values in assignments:
            # Other values of the ranges lead to the same message, and to find the nearest names takes seconds.
            options = {key: value for key, value in values.items() if "." not in key}
            if options not in misnamed:
                problems, is_misnamed = check_values(composer, [*fixed, *overrides_of_trial(values)], descriptions)
                tried.append((values, problems))
                wrong.update(dict.fromkeys(problems))
                misnamed += [options] if is_misnamed else []
            progress.advance(1)
    if wrong:
        raise ConfigError("\n".join([*wrong, *missing_conditions(space, tried)]))
    return descriptions[0]


def missing_conditions(space: Space, tried: Sequence[Tuple[Values, Sequence[str]]]) -> Iterator[str]:
    """Yields a suggestion for each setting that only some options of its group take, if the options are in the space.

    Args:
        space: the space.
        tried: values that were validated, with their problems.
    """
    choices = {setting.key: setting.choices for setting in space.parameters if setting.kind == "choice"}
    for setting in space.parameters:
        group = setting.key.partition(".")[0]
        if group == setting.key or group not in choices or group in setting.when:
            continue
        refused = {
            values[group]
            for values, problems in tried
            if group in values and any(_is_about(setting.key, problem) for problem in problems)
        }
        usable = [option for option in choices[group] if option not in refused]
        if refused and usable:
            condition = usable[0] if len(usable) == 1 else f"[{', '.join(usable)}]"
            yield (
                f"{setting.key} is refused with {group}={'|'.join(sorted(map(str, refused)))}. A file can say when a "
                f"setting exists, space=space.yaml: `{setting.key}: {{values: '{setting.range_text()}', when: "
                f"{{{group}: {condition}}}}}`."
            )


def _is_about(key: str, problem: str) -> bool:
    return problem.startswith(f"{key}=") or f"'{key}'" in problem


def check_values(
    composer: Composer, overrides: Sequence[str], descriptions: List[Description]
) -> Tuple[List[str], bool]:
    """Composes and validates a trial, and adds its description to those of the trials before.

    Returns:
        The problems, and True if a name does not exist.
    """
    try:
        descriptions.append(compose_one(composer, overrides, "tune", descriptions))
    except (ConfigError, DataError) as error:
        return str(error).splitlines(), isinstance(error, WrongOverrides)
    return [], False
