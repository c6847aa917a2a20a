"""Checks that dataset, model, loss, metrics and task fit each other, and that data fit a trained network."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Mapping, Sequence

from mxtrain.config.specs import name_of
from mxtrain.errors import CheckpointError, ConfigError, DataError, run_dir_setting

if TYPE_CHECKING:
    from mxtrain.config.groups import Description
    from mxtrain.data.signature import Signature
    from mxtrain.data.spec import Splits
    from mxtrain.task.spec import Task


def check_fit(task: Task, description: Description) -> None:
    """Runs the checks that all tasks share.

    Raises:
        ConfigError: two parts do not fit; the message names the setting to change.
    """
    dataset, model, loss = description.dataset, description.model, description.loss
    task_name = f"task={task.name}" if task.name else f"the task {type(task).__name__}"
    is_unfit_model = bool(task.name and model.tasks) and task.name not in model.tasks
    if task.name and task.name not in dataset.tasks:
        fitting_tasks = " or ".join(f"task={name}" for name in dataset.tasks)
        options = " or ".join(f"dataset={name}" for name in task.dataset_options)
        with_model = f" with {_model_for(task, {})}" if is_unfit_model else ""
        instead = f" Or a dataset for {task_name}, e.g. {options}{with_model}." if options else ""
        raise ConfigError(
            f"{task_name} and the dataset do not fit: its samples are for {fitting_tasks}."
            f"{_spelling(task, dataset, dataset.tasks)} Type that.{instead}"
        )
    if is_unfit_model:
        # All tasks of the class, not only those of its current settings. A property has no value on the class.
        tasks = type(dataset).tasks
        tasks = tasks if isinstance(tasks, tuple) else dataset.tasks
        shared_tasks = [f"task={name}, or " for name in model.tasks if name in tasks]
        advice = f"Type {''.join(shared_tasks)}{_model_for(task, dataset.model_hints)}."
        if not type(task).__module__.startswith("mxtrain."):
            advice = f'Subclass {type(model).__name__} and set tasks = ("{task.name}",), or choose a model of your own.'
        raise ConfigError(
            f"task={task.name} and the model {type(model).__name__} do not fit: it is for "
            f"{', '.join(model.tasks)}.{_spelling(task, model, model.tasks)} {advice}"
        )
    if dataset.sampler != "shuffle" and not task.has_classes:
        raise ConfigError(
            f"dataset.sampler={dataset.sampler}: samples of {task_name} have no single class to choose them by. Type "
            "dataset.sampler=shuffle."
        )
    if model.input_types and dataset.sample_type not in model.input_types:
        sample_types = " or ".join(model.input_types)
        example = model.dataset_hints.get(task.name, model.dataset_hints.get("", ""))
        other_dataset = f"a dataset of {sample_types}" + (f", e.g. {example}" if example else " of your own")
        raise ConfigError(
            f"model takes {sample_types}, and dataset gives {dataset.sample_type}. Type "
            f"{_model_for(task, dataset.model_hints)}, or {other_dataset}."
        )
    model.require_known(dataset.signature_class.known_names)
    if loss.tasks and task.name not in loss.tasks:
        instead = f"loss={task.loss_option}" if task.loss_option else "another loss"
        raise ConfigError(
            f"loss: {type(loss).__name__} is for {', '.join(loss.tasks)}, not for {task_name}."
            f"{_spelling(task, loss, loss.tasks)} Type {instead}."
        )
    for name, metric in description.metric.items():
        if metric.tasks and task.name not in metric.tasks:
            instead = f"metric=[{task.metric_option}]" if task.metric_option else "another metric"
            raise ConfigError(
                f"metric.{name}: {type(metric).__name__} is for {', '.join(metric.tasks)}, not for {task_name}."
                f"{_spelling(task, metric, metric.tasks)} Type {instead}."
            )


def _spelling(task: Task, other: object, tasks: Sequence[str]) -> str:
    """Returns a hint if a user's own class may have misspelt a task's name in `tasks` or `name`; otherwise ""."""
    similar = difflib.get_close_matches(task.name, tasks, n=1, cutoff=0.8)
    kinds = [kind for kind in (type(task), type(other)) if not kind.__module__.startswith("mxtrain.")]
    if not similar or not kinds:
        return ""
    return f" '{similar[0]}' and '{task.name}' differ in spelling: see {' and '.join(map(name_of, kinds))}."


def _model_for(task: Task, hints: Mapping[str, str]) -> str:
    """Returns the override of a model that fits a task; `hints` are the dataset's `model_hints`, empty for any."""
    usual = f"model={task.model_option}" if task.model_option else hints.get("", "another model, e.g. model=lenet")
    return hints.get(task.name, usual) if task.name else usual


def require_same_names(signature: Signature, splits: Splits) -> None:
    """Checks that the data have the classes that the network has learned, in the same order.

    Raises:
        DataError: they differ.
    """
    learned_names, class_names = list(signature.learned_names), list(splits.class_names)
    if learned_names != class_names:
        raise DataError(
            f"the dataset's {len(class_names)} classes are not those the model was trained on ({len(learned_names)}): "
            f"{_some(class_names)} against {_some(learned_names)}. Name the right data with dataset=... or "
            "dataset.root=FOLDER."
        )


def require_same_learned_names(before: Signature, signature: Signature, source: str) -> None:
    """Checks that outputs of a resumed network keep their meaning. Another number of classes does not fit its weights.

    Args:
        before: signature of a checkpoint.
        signature: signature of the data as they are.
        source: path of the checkpoint.

    Raises:
        CheckpointError: as many classes have other names, or another order.
    """
    learned, present = list(before.learned_names), list(signature.learned_names)
    if len(learned) == len(present) and learned != present:
        other = next(number for number, name in enumerate(learned) if name != present[number])
        raise CheckpointError(
            f"{source} was trained with other classes: class {other} was '{learned[other]}', and now it is "
            f"'{present[other]}'. Choose another {run_dir_setting()}, or start from these weights with "
            f"model.weights={source}/model.params."
        )


def require_known_names(signature: Signature, splits: Splits) -> None:
    """Checks that the data have no more classes than the network has learned.

    Fewer are allowed: arrays that are only evaluated need not have all classes.

    Raises:
        ConfigError: they have more.
    """
    num_learned, num_classes = len(signature.learned_names), len(splits.class_names)
    if num_classes > num_learned:
        raise ConfigError(
            f"evaluate: dataset= has a label {num_classes - 1}, and the run has learned {num_learned} classes."
        )


def _some(names: Sequence[str]) -> str:
    return ", ".join(list(names)[:3]) + (", ..." if len(names) > 3 else "")
