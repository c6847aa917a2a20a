"""Whether dataset, model, loss and metrics fit each other and a task, and whether data fit what was learned."""

from __future__ import annotations

from typing import TYPE_CHECKING, Sequence

from mxtrain.errors import ConfigError, DataError

if TYPE_CHECKING:
    from mxtrain.dataset.base import Splits
    from mxtrain.dataset.signature import Signature
    from mxtrain.description.groups import Description
    from mxtrain.task.base import Task

DATASETS = {
    "text": "dataset=text", "numbers": "dataset=tabular", "frames": "dataset=digit_lines",
    "symbols": "dataset=formant_digits", "features": "dataset=feature_table",
    "indexed_features": "dataset=libsvm", "interactions": "dataset=imported_names",
    "observations": "dataset=gymnasium",
}  # fmt: skip
"""A dataset for each kind of input that a model takes."""
DATASETS_OF_TASKS = {("regression", "text"): "dataset=glue dataset.task=stsb", ("regression", "images"): ""}
"""Likewise where the task needs another one than `DATASETS` says; empty: there is none but a user's own."""
MODELS = {
    "text": "model=bert", "numbers": "model=mlp", "frames": "model=deep_speech2", "symbols": "model=fastspeech",
    "features": "model=wide_deep", "indexed_features": "model=factorization_machine", "interactions": "model=fism",
    "observations": "model=actor_critic",
}  # fmt: skip
"""A model for each kind of sample that a dataset gives."""
MODELS_OF_TASKS = {
    ("regression", "text"): "model=bert", ("regression", "images"): "model=lenet",
    ("tabular", "indexed_features"): "model=factorization_machine",
}  # fmt: skip
"""A model for a task and a kind of sample that the task's usual model does not read."""


def check_fit(task: Task, description: Description) -> None:
    """Checks what every task has to.

    Raises:
        ConfigError: parts do not fit; says what to type.
    """
    dataset, model, loss = description.dataset, description.model, description.loss
    own = f"task={task.name}" if task.name else f"the task {type(task).__name__}"
    is_unfit = bool(task.name and model.serves) and task.name not in model.serves
    if task.name and task.name not in dataset.serves:
        others = " or ".join(f"task={name}" for name in dataset.serves)
        options = " or ".join(f"dataset={name}" for name in task.dataset_options)
        beside = f" with {_model_for(task, '')}" if is_unfit else ""
        instead = f" Or a dataset for {own}, e.g. {options}{beside}." if options else ""
        raise ConfigError(f"{own} and the dataset do not fit: its samples are for {others}. Type that.{instead}")
    if is_unfit:
        serves = type(dataset).serves  # for any task
        serves = serves if isinstance(serves, tuple) else dataset.serves  # where a setting decides
        both = [f"task={name}, or " for name in model.serves if name in serves]
        raise ConfigError(
            f"task={task.name} and the model {type(model).__name__} do not fit: it is for "
            f"{', '.join(model.serves)}. Type {''.join(both)}{_model_for(task, dataset.gives)}."
        )
    if dataset.sampler != "shuffle" and not task.has_classes:
        raise ConfigError(
            f"dataset.sampler={dataset.sampler}: samples of {own} have no single class to choose them by. Type "
            "dataset.sampler=shuffle."
        )
    if model.reads and dataset.gives not in model.reads:
        takes = " or ".join(model.reads)
        example = DATASETS_OF_TASKS.get((task.name, model.reads[0]), DATASETS.get(model.reads[0], "dataset=digits"))
        other = f"a dataset of {takes}, e.g. {example}" if example else f"a dataset of {takes} of your own"
        raise ConfigError(
            f"model takes {takes}, and dataset gives {dataset.gives}. Type {_model_for(task, dataset.gives)}, or "
            f"{other}."
        )
    if loss.serves and task.name not in loss.serves:
        instead = f"loss={task.loss_option}" if task.loss_option else "another loss"
        raise ConfigError(
            f"loss: {type(loss).__name__} is for {', '.join(loss.serves)}, not for {own}. Type {instead}."
        )
    for name, metric in description.metric.items():
        if metric.serves and task.name not in metric.serves:
            instead = f"metric=[{task.metric_option}]" if task.metric_option else "another metric"
            raise ConfigError(
                f"metric.{name}: {type(metric).__name__} is for {', '.join(metric.serves)}, not for {own}. Type "
                f"{instead}."
            )


def _model_for(task: Task, gives: str) -> str:
    """The model to type for a task, and for what the dataset gives; `gives` is empty where that may be anything."""
    usual = f"model={task.model_option}" if task.model_option else MODELS.get(gives, "another model, e.g. model=lenet")
    return MODELS_OF_TASKS.get((task.name, gives), usual)


def require_same_names(signature: Signature, splits: Splits) -> None:
    """Refuses data whose names are not those of what was learned.

    Raises:
        DataError: they differ.
    """
    learned, found = list(signature.class_names) or list(signature.symbols), list(splits.class_names)
    if learned != found:
        raise DataError(
            f"the dataset's {len(found)} classes are not those the model was trained on ({len(learned)}): "
            f"{_some(found)} against {_some(learned)}. Name the right data with dataset=... or dataset.root=FOLDER."
        )


def _some(names: Sequence[str]) -> str:
    return ", ".join(list(names)[:3]) + (", ..." if len(names) > 3 else "")
