"""Checks that dataset, model, loss, metrics and task fit each other, and that data fit a trained network."""

from __future__ import annotations

import typing
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional, Protocol, Sequence, Tuple, Type

from mxtrain.config.options import option_classes, usual_options
from mxtrain.config.placeholders import Given
from mxtrain.config.specs import name_of
from mxtrain.errors import CheckpointError, ConfigError, DataError, run_dir_setting
from mxtrain.types.kinds import REPLACED, ClassIndex, Gives, RowClass, Takes, TargetKind, explain_replaced

if TYPE_CHECKING:
    from mxtrain.config.parts import RunParts
    from mxtrain.data.signature import Signature
    from mxtrain.data.spec import BaseDataset, Splits
    from mxtrain.model.spec import Model

Targets = Sequence[Type[TargetKind]]


class FittedTask(Protocol):
    """The members of `Task` that this module reads; see there."""

    @property
    def name(self) -> str: ...

    @property
    def takes(self) -> Takes: ...


def target_of(task: FittedTask, dataset: BaseDataset) -> Optional[Type[TargetKind]]:
    """Returns the kind of target that a dataset gives for a task; None if the two do not fit.

    A task that names no kinds makes targets of its own from any samples: `TargetKind`.
    """
    targets = _targets_for(task, dataset.gives)
    return targets[0] if targets else None


def learned_target_of(task: FittedTask, dataset: BaseDataset) -> Optional[Type[TargetKind]]:
    """Returns the kind of target that model, loss and metrics get: `Takes.makes`, or that of the dataset. None if task
    and dataset do not fit."""
    target = target_of(task, dataset)
    return target and (task.takes.makes or target)


def _learned_kinds(task: Any) -> Targets:
    """Returns the kinds of targets that models, losses and metrics of a task may get; empty: any."""
    return [task.takes.makes] if task.takes.makes else task.takes.targets


def has_one_class(task: FittedTask, dataset: BaseDataset) -> bool:
    """Returns True if each sample has one class, of those in `Splits.class_names`."""
    return any(issubclass(target, (ClassIndex, RowClass)) for target in _targets_for(task, dataset.gives))


def check_fit(task: FittedTask, description: RunParts) -> None:
    """Compares the kinds of samples and targets that the parts of a run give and take.

    Raises:
        ConfigError: two parts do not fit; the message names the setting to change and all options that fit.
    """
    dataset, model = description.dataset, description.model
    for part in (task, dataset, model, description.loss, *description.metric.values()):
        _refuse_names_of_tasks(type(part))
    target = target_of(task, dataset)
    if target is None:
        raise ConfigError(_unfit_dataset(task, dataset, model))
    target = task.takes.makes or target
    if _learned_kinds(task) and not model.takes.takes_target(target):
        raise ConfigError(_unfit_model(task, dataset, model, target))
    if dataset.sampler != "shuffle" and not has_one_class(task, dataset):
        raise ConfigError(
            f"dataset.sampler={dataset.sampler}: samples of {title_of(task)} have no single class to choose them by. "
            "Type dataset.sampler=shuffle."
        )
    if not model.takes.takes_sample(dataset.gives.sample):
        raise ConfigError(_unfit_samples(task, dataset, model, target))
    model.require_known(dataset.signature_class.known_names)
    parts: Dict[str, Any] = {"loss": description.loss}
    parts.update({f"metric.{name}": metric for name, metric in description.metric.items()})
    for path, part in parts.items():
        if not part.takes.takes_target(target):
            group = path.partition(".")[0]
            options = _usual_first(task, group, _options(group, lambda other: other.takes.takes_target(target)))
            options = [model.loss_option] if model.loss_option in options else options
            option = options[0] if options else ""
            typed = f"metric=[{option}]" if group == "metric" else f"loss={option}"
            raise ConfigError(
                f"{path}: {type(part).__name__} is for {', '.join(_tasks_with(part.takes.targets))}, not for "
                f"{title_of(task)}. Type {typed if option else f'another {group}'}.{_others(options)}"
            )


def _refuse_names_of_tasks(kind: type) -> None:
    """Rejects a user's class that still declares the tasks it fits by name."""
    for name in REPLACED:
        if hasattr(kind, name):
            raise ConfigError(explain_replaced(name_of(kind), name, hasattr(kind, "gives")))


def title_of(task: FittedTask) -> str:
    """Returns the name of a task in messages."""
    return f"task={task.name}" if task.name else f"the task {type(task).__name__}"


def _unfit_dataset(task: FittedTask, dataset: BaseDataset, model: Model) -> str:
    """Returns the message for a dataset without a kind of target that the task takes."""
    tasks = [f"task={option}" for option in _tasks_for(dataset.gives)]
    fitting = f"{_listed(tasks)}. Type that." if tasks else f"{_names(dataset.gives.targets)}."
    datasets = _datasets_for(task, model)
    with_model = ""
    if not datasets:  # the model does not fit this task either
        datasets = _datasets_for(task, None)
        usual_models = usual_options(task.name, "model")
        with_model = f" with model={usual_models[0]}" if usual_models else ""
    instead = f"a dataset of your own that gives {_names(task.takes.targets)}."
    if datasets:
        instead = f"a dataset for {title_of(task)}: {_listed(list(datasets.values()))}{with_model}."
    return f"{title_of(task)} and the dataset do not fit: its samples are for {fitting} Or {instead}"


def _unfit_model(task: FittedTask, dataset: BaseDataset, model: Model, target: Type[TargetKind]) -> str:
    """Returns the message for a model that predicts nothing of the task's kind."""
    tasks = _tasks_with(model.takes.targets)
    shared = [f"task={option}, or " for option in _tasks_for(dataset.gives) if option in tasks]
    typed, options = _models_for(task, dataset, target)
    own = ""
    if not type(task).__module__.startswith("mxtrain."):
        own = f" Or derive {target.__name__} from one of {_names(model.takes.targets)}."
    return (
        f"{title_of(task)} and the model {type(model).__name__} do not fit: it is for {', '.join(tasks)}. Type "
        f"{''.join(shared)}{typed}.{_others(options)}{own}"
    )


def _unfit_samples(task: FittedTask, dataset: BaseDataset, model: Model, target: Type[TargetKind]) -> str:
    """Returns the message for a model that takes other samples than the dataset gives."""
    samples = " or ".join(kind.name or kind.__name__ for kind in model.takes.samples)
    typed, options = _models_for(task, dataset, target)
    datasets = _datasets_for(task, model)
    example = f", e.g. {next(iter(datasets.values()))}" if datasets else " of your own"
    return (
        f"model takes {samples}, and dataset gives {dataset.gives.sample.name}. Type {typed}, or a dataset of "
        f"{samples}{example}.{_others(options, 'models')}{_others(list(datasets), 'datasets')}"
    )


def _targets_for(task: Any, gives: Gives) -> Targets:
    """Returns the kinds of targets that the dataset gives and the task takes."""
    if not task.takes.takes_sample(gives.sample):
        return []
    return [kind for kind in gives.targets if task.takes.takes_target(kind)] if task.takes.targets else [TargetKind]


def _tasks_for(gives: Gives) -> List[str]:
    """Returns the options of conf/task/ for the samples of a dataset; for its first kind of target first."""
    tasks = option_classes("task")
    return list(
        dict.fromkeys(name for kind in gives.targets for name in tasks if kind in _targets_for(tasks[name], gives))
    )


def _tasks_with(targets: Targets) -> List[str]:
    """Returns the options of conf/task/ for kinds of targets; the names of the kinds if there are none."""
    options = _options("task", lambda task: any(issubclass(kind, tuple(targets)) for kind in _learned_kinds(task)))
    return options or [kind.__name__ for kind in targets]


def _models_for(task: FittedTask, dataset: BaseDataset, target: Type[TargetKind]) -> Tuple[str, List[str]]:
    """Returns a model override that fits a task and a dataset, for messages, and all options of models that fit."""

    def fits(model: Any) -> bool:
        predicts = not _learned_kinds(task) or model.takes.takes_target(target)
        return bool(predicts and model.takes.takes_sample(dataset.gives.sample))

    options = _usual_first(task, "model", _options("model", fits))
    typed = f"model={options[0]}" if options else "a model of your own"
    if isinstance(dataset, Given):  # a dataset passed from Python
        typed += ", or in Python model=NETWORK, a gluon.Block of your own"
    return typed, options


def _datasets_for(task: FittedTask, model: Optional[Model]) -> Dict[str, str]:
    """Returns the overrides of the datasets that fit a task and, if given, a model, by option."""

    def fits(gives: Gives) -> bool:
        targets = _targets_for(task, gives)
        if targets and task.takes.makes:
            targets = [task.takes.makes]
        if model is None or not _learned_kinds(task):
            return bool(targets) and (model is None or model.takes.takes_sample(gives.sample))
        return model.takes.takes_sample(gives.sample) and any(model.takes.takes_target(kind) for kind in targets)

    found = {option: _settings_for(kind, fits) for option, kind in option_classes("dataset").items()}
    options = _usual_first(task, "dataset", [option for option, settings in found.items() if settings is not None])
    return {option: f"dataset={option}{found[option]}" for option in options}


def _settings_for(dataset: Any, fits: Callable[[Gives], bool]) -> Optional[str]:
    """Returns the override with which a class of datasets fits; "" if it fits without one; None if it never fits.

    If the kinds depend on a setting, `gives` is a property; each value of its `Literal` settings is then tried.
    """
    if isinstance(dataset.gives, Gives):
        return "" if fits(dataset.gives) else None
    for name, field in dataset.model_fields.items():
        for value in typing.get_args(field.annotation) if typing.get_origin(field.annotation) is typing.Literal else ():
            try:
                gives = dataset(**{name: value}).gives
            except ValueError:  # this value requires another setting, too
                continue
            if fits(gives):
                return "" if value == field.default else f" dataset.{name}={value}"
    return None


def _options(group: str, fits: Callable[[Any], bool]) -> List[str]:
    """Returns the options of a group whose class fits. A user's own network or loss may be of any class."""
    return [option for option, kind in option_classes(group).items() if hasattr(kind, "takes") and fits(kind)]


def _usual_first(task: FittedTask, group: str, options: List[str]) -> List[str]:
    """Returns `options`, those first that the task's file in conf/task/ chooses."""
    usual = [option for option in usual_options(task.name, group) if option in options]
    return [*usual, *(option for option in options if option not in usual)]


def _others(options: Sequence[str], name: str = "options") -> str:
    """Returns a sentence that lists all options but the first, which the message already suggests; empty if none."""
    return f" Other {name} that fit: {', '.join(options[1:])}." if options[1:] else ""


def _listed(words: Sequence[str]) -> str:
    """Returns the words as an enumeration: "a, b or c"."""
    return f"{', '.join(words[:-1])} or {words[-1]}" if len(words) > 1 else "".join(words)


def _names(kinds: Targets) -> str:
    return " or ".join(kind.__name__ for kind in kinds)


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
    """Checks that the outputs of a resumed network keep their meaning.

    Another number of classes is not checked here, because loading the weights would fail.

    Args:
        before: signature of a checkpoint.
        signature: signature of the current data.
        source: path of the checkpoint.

    Raises:
        CheckpointError: as many classes have other names, or another order.
    """
    learned, present = list(before.learned_names), list(signature.learned_names)
    if len(learned) == len(present) and learned != present:
        index = next(number for number, name in enumerate(learned) if name != present[number])
        raise CheckpointError(
            f"{source} was trained with other classes: class {index} was '{learned[index]}', and now it is "
            f"'{present[index]}'. Choose another {run_dir_setting()}, or start from these weights with "
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
