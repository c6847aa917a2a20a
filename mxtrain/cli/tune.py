"""`mxtrain tune` trains many trials of one description, looks for the best settings, and stops bad trials early.

STUDY is a folder. Settings with ranges differ between trials: `optimizer.lr=log(1e-4,1e-1)`,
`model=choice(mlp,lenet)`, `range(1,9,2)` (without the end), `interval(0,0.5)`, `int(1,8)`, `log_int(8,512)`. The same
command continues a study, as does `tune STUDY` alone; `tune worker STUDY` adds a worker, here or on another machine;
`tune show STUDY` prints the table. Each trial is a run directory of its own, named by its number."""

from __future__ import annotations

import os
import shlex
import sys
import uuid
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Dict, Iterator, List, Sequence, Tuple

from mxtrain.cli.commands import COMMANDS
from mxtrain.cli.study_table import print_study
from mxtrain.cluster.launch.outcome import print_cause
from mxtrain.cluster.launch.sweep import direction_of, refuse_missing_data, refuse_other_task
from mxtrain.cluster.stopping import exit_code_of_signal
from mxtrain.composing import arguments as command_line
from mxtrain.composing.arguments import Arguments
from mxtrain.composing.composer import Composer
from mxtrain.composing.environment import compose_and_check
from mxtrain.composing.foreign_words import refuse_words, require_trusted_words
from mxtrain.composing.mistakes import WrongOverrides
from mxtrain.composing.ranges import split_space
from mxtrain.composing.settings import refuse_misspelled_groups, split_settings
from mxtrain.config.groups import Description
from mxtrain.config.override_text import key_of
from mxtrain.config.secret_values import hide_secrets
from mxtrain.config.specs import shown
from mxtrain.errors import EXIT_CRASHED, EXIT_FINISHED, ConfigError, DataError, did_you_mean
from mxtrain.files.text_lines import printable_line
from mxtrain.terminal.program import program
from mxtrain.terminal.progress import ProgressDisplay
from mxtrain.tuning.folder import STUDY_FILE, StudyDescription, StudyFolder
from mxtrain.tuning.population import check_population
from mxtrain.tuning.samplers import check_sampler
from mxtrain.tuning.space import Space, Value, Values, override_words, setting_of
from mxtrain.tuning.spec import TuneSettings, first_rung
from mxtrain.tuning.trials import SPEED, Study, open_storage, require_optuna, require_sampler_libraries
from mxtrain.tuning.worker import Worker
from mxtrain.types import expand_path

DEFAULT_TRIALS = 20
QUIET_S = 2.0
"""Seconds before a line says that the ranges are checked, if the output is no terminal."""
SET_BY_STUDY = {
    "hydra.run.dir": "each trial has its own, below the study's folder",
    "hydra.sweep.dir": "the study's folder is named first: tune FOLDER",
    "hydra.mode": "a study chooses its trials itself",
    "trainer.epoch_budget": "the pruner sets it, for each rung; min_epochs=N is the first one",
    "checkpoint.resume": "a study continues its trials itself",
}
"""Setting -> reason why it cannot be typed: a study sets it for its trials."""
NEED_WHOLE_LENGTH = ("trainer.max_epochs", "trainer.max_steps", "trainer.val_interval", "trainer.val_interval_unit")


def run(arguments: Sequence[str]) -> int:
    """Runs a study, a worker, or prints the table; returns the exit code."""
    parsed = command_line.parse(arguments, reads_checkpoint=True)
    if parsed.multirun:
        raise ConfigError("tune is a sweep of its own: leave out -m.")
    settings, overrides = split_settings(parsed, TuneSettings, "tune")
    refuse_misspelled_groups(overrides, "tune", parsed.config_dirs)
    subcommand, folder = study_of(parsed)
    require_optuna()
    typed = [key_of(word) for word in parsed.overrides]
    if subcommand:
        refuse_more([word for word in parsed.overrides if key_of(word) != "storage"], subcommand)
        refuse_other_settings(folder, settings, typed)
    if subcommand == "show":
        description = folder.read()
        require_trusted_storage(folder, description, settings, parsed)
        with interrupted_study(folder):
            print_study(folder, description, Study(folder, description, writes=False))
        return EXIT_FINISHED
    if not subcommand and not (folder.exists and not overrides and settings.space is None):
        description = begin(folder, settings, overrides, parsed)
    else:
        refuse_other_settings(folder, settings, typed)
        description = read_trusted_study(folder, settings, parsed)
    return train(folder, description if subcommand else resume(folder, description, settings))


def study_of(parsed: Arguments) -> Tuple[str, StudyFolder]:
    """Returns the subcommand, or an empty string, and the folder of the study.

    Raises:
        ConfigError: no folder was named, or several.
    """
    words, names = list(parsed.positionals), COMMANDS["tune"].subcommands
    subcommand = words.pop(0) if words and words[0] in names else ""
    if len(words) != 1:
        count = f"{len(words)} were given ({', '.join(words)})" if words else "none was given"
        typed = f"{subcommand} STUDY" if subcommand else "STUDY RANGES n_trials=20"
        near = did_you_mean(words[0], names) if len(words) > 1 else ""
        raise ConfigError(
            f"tune takes the folder of one study, and {count}. Type `tune {typed}`, where STUDY is a folder.{near}"
        )
    return subcommand, StudyFolder(Path(expand_path(words[0])))


def refuse_more(words: Sequence[str], subcommand: str) -> None:
    """Rejects overrides after the folder, since study.json defines the study.

    Raises:
        ConfigError: there are some.
    """
    for word in words:
        raise ConfigError(
            f"tune {subcommand}: {word}: what is trained is written in the study's folder. Leave it out; "
            "`tune STUDY n_trials=N` changes the number of trials."
        )


def read_trusted_study(folder: StudyFolder, settings: TuneSettings, parsed: Arguments) -> StudyDescription:
    """Returns the description of a study in an untrusted folder.

    The caller must train this description and not read study.json again, because the file may change.

    Args:
        folder: folder of the study.
        settings: settings of the command.
        parsed: command line.

    Raises:
        ConfigError: the study would run code, or write to places, that only its file names, without --trust-code.
    """
    description = folder.read()
    folder.refuse_links()
    require_trusted_storage(folder, description, settings, parsed)
    if parsed.trusts_code:
        return description
    file = str(folder.path / STUDY_FILE)
    place = description.working_folder
    flags = command_line.config_flags([os.path.abspath(path) for path in parsed.config_dirs])
    if [*description.flags[:1], *(os.path.join(place, path) for path in description.flags[1:])] != flags:
        refuse_words([shlex.join(description.flags)] if description.flags else [], file)
        raise ConfigError(f"--config-dir {parsed.config_dirs[0]}: the study in {folder.path} has none. Leave it out.")
    space = description.space
    first = override_words(space.edges()[0])
    alternatives = [
        word
        for one in space.parameters
        for value in one.choices or (one.low, one.high)
        for word in override_words({one.key: value})
    ]
    with Composer(parsed.config_dirs) as composer:
        words = [*description.overrides, *first]
        require_trusted_words(composer, words, alternatives, file, "tune", parsed.config_dirs)
    return description


def require_trusted_storage(
    folder: StudyFolder, description: StudyDescription, settings: TuneSettings, parsed: Arguments
) -> None:
    """Refuses to create or connect to a database that only study.json names.

    Raises:
        ConfigError: it names one that was not typed, without --trust-code.
    """
    storage = description.settings.storage
    if storage is not None and settings.storage is None and not parsed.trusts_code:
        raise ConfigError(
            hide_secrets(
                f"the study in {folder.path} is kept in the database {printable_line(storage, 200)}, which only "
                f"{STUDY_FILE} names. If it is yours, type the same storage=... again, or add --trust-code."
            )
        )


def refuse_other_settings(folder: StudyFolder, settings: TuneSettings, typed: Sequence[str]) -> None:
    """Rejects settings that differ from those of an existing study.

    Args:
        folder: folder of the study.
        settings: settings of the command.
        typed: names of the settings that were given.

    Raises:
        ConfigError: some differ; the message lists them.
    """
    kept = folder.read().settings
    names = [name for name in typed if name != "n_trials" and getattr(settings, name) != getattr(kept, name)]
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


def begin(folder: StudyFolder, settings: TuneSettings, overrides: Sequence[str], parsed: Arguments) -> StudyDescription:
    """Checks the whole space and makes the study's folder; one that exists must be the same study. Returns its
    description.

    Raises:
        ConfigError: the study is invalid; the message lists all problems, and nothing was written.
    """
    folder.refuse_other_content()
    require_sampler_libraries(settings.sampler)
    with Composer(parsed.config_dirs) as composer:
        description = describe_study(composer, settings, overrides, command_line.config_flags(parsed.config_dirs))
    if settings.storage is not None:
        open_storage(folder, settings.storage)  # says what is wrong with it before anything is written
    return folder.create(description)


def describe_study(
    composer: Composer, settings: TuneSettings, overrides: Sequence[str], flags: Sequence[str]
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
    objectives = objectives_of(settings)
    if len(objectives) == 1 and objectives[0] != SPEED:
        fixed = [*(word for word in fixed if key_of(word) != "trainer.monitor"), f"trainer.monitor={objectives[0]}"]
    check_sampler(settings, space, len(objectives) or 1)
    if settings.sampler == "pbt":
        check_population(settings, space)
    first = check_space(composer, fixed, space)
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


def objectives_of(settings: TuneSettings) -> List[str]:
    """Returns the objectives that were typed."""
    return [word.strip() for word in (settings.objectives or "").split(",") if word.strip()]


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
    typed = f"pruner={settings.pruner}" if settings.pruner != "none" else "sampler=pbt"
    if description.trainer.max_epochs is None:
        raise ConfigError(f"{typed}: the rungs are parts of trainer.max_epochs, which is null. Give it a number.")
    if description.trainer.max_steps is not None:
        raise ConfigError(
            f"trainer.max_steps={description.trainer.max_steps}: with {typed} the whole length is "
            "trainer.max_epochs. Leave it out."
        )
    for parameter in space.parameters:
        if setting_of(parameter.key) in NEED_WHOLE_LENGTH:
            raise ConfigError(
                f"{setting_of(parameter.key)}: with {typed} all trials have the same length and validations. "
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


def check_space(composer: Composer, fixed: Sequence[str], space: Space) -> Description:
    """Composes and validates the edges of every range; returns the first description.

    Raises:
        ConfigError: some are invalid; the message lists all problems.
    """
    descriptions: List[Description] = []
    wrong: Dict[str, None] = {}
    misnamed: List[Dict[str, Value]] = []  # options of groups with which a name does not exist
    tried: List[Tuple[Values, List[str]]] = []
    assignments = space.edges()
    with ProgressDisplay(quiet_s=0.0 if sys.stderr.isatty() else QUIET_S) as display:
        display.begin("checking the values of all ranges:", len(assignments))
        for values in assignments:
            # Other values of the ranges lead to the same message, and to find the nearest names takes seconds.
            options = {key: value for key, value in values.items() if "." not in key}
            if options not in misnamed:
                problems, is_misnamed = check_values(composer, [*fixed, *override_words(values)], descriptions)
                tried.append((values, problems))
                wrong.update(dict.fromkeys(problems))
                misnamed += [options] if is_misnamed else []
            display.advance(1)
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
    environment = dict(os.environ)
    try:
        descriptions.append(compose_and_check(composer, overrides)[1])
        refuse_other_task(descriptions[0], descriptions[-1])
        descriptions[-1].trainer.require_one_run("tune")
        if descriptions[-1].dataset not in [description.dataset for description in descriptions[:-1]]:
            refuse_missing_data(descriptions[-1].dataset)
    except (ConfigError, DataError) as error:
        return str(error).splitlines(), isinstance(error, WrongOverrides)
    finally:
        os.environ.clear()  # each trial applies its own runtime; this process only validates
        os.environ.update(environment)
    return [], False


# Training.


def resume(folder: StudyFolder, description: StudyDescription, settings: TuneSettings) -> StudyDescription:
    """Continues a stopped study, and increases its number of trials; returns its description.

    Raises:
        ConfigError: the requested number of trials is not possible.
    """
    study = Study(folder, description)
    if study.stop_cause:
        study.set_stop_cause("")
    total = settings.n_trials
    if total is None or total == description.settings.n_trials:
        return description
    if description.settings.sampler == "pbt":
        raise ConfigError(f"n_trials={total}: a population keeps its {description.settings.n_trials} members.")
    if description.settings.sampler == "grid" and total > len(description.space.grid()):
        raise ConfigError(
            f"n_trials={total}: the grid has {len(description.space.grid())} combinations. Leave n_trials out."
        )
    if total < len(study.trials):
        raise ConfigError(f"n_trials={total}: {len(study.trials)} trials have begun. Give at least that number.")
    return folder.set_n_trials(description, total)


def train(folder: StudyFolder, description: StudyDescription) -> int:
    """Trains until the study is complete and prints its table; returns the exit code."""
    require_sampler_libraries(description.settings.sampler)  # this worker may run on another machine
    with interrupted_study(folder) as stopped:
        worker = Worker(folder, description, lambda line: print(line, flush=True))
        worker.run()
        print_study(folder, description, worker.study)
        if not any(trial.state.name == "COMPLETE" for trial in worker.study.trials):
            print_cause(reason_without_result(worker.study.trials), EXIT_CRASHED)
            return EXIT_CRASHED
    return stopped[0] if stopped else EXIT_FINISHED


def reason_without_result(trials: Sequence[Any]) -> str:
    """Returns a sentence about a study of which no trial was trained to its end."""
    pruned = sum(trial.state.name == "PRUNED" for trial in trials)
    if not pruned:
        return "all trials failed"
    subject = f"all {pruned} trials were"
    if pruned < len(trials):
        subject = f"{len(trials) - pruned} of {len(trials)} trials failed, and the others were"
    return (
        f"{subject} pruned: no trial was trained to its end, so the study has no best one. n_trials=N adds trials; "
        "another study may have a larger min_epochs, or pruner=median"
    )


@contextmanager
def interrupted_study(folder: StudyFolder) -> Iterator[List[int]]:
    """Turns a signal into a message and an exit code, which is put into the list."""
    stopped: List[int] = []
    try:
        yield stopped
    except KeyboardInterrupt as error:
        stopped.append(exit_code_of_signal(error))
        sys.stdout.flush()
        print_cause(f"the study was interrupted; `{program()} tune {folder.path}` continues it", stopped[0])
