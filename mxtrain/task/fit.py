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
MODELS = {
    "text": "model=bert", "numbers": "model=mlp", "frames": "model=deep_speech2", "symbols": "model=fastspeech",
    "features": "model=wide_deep", "indexed_features": "model=factorization_machine", "interactions": "model=fism",
    "observations": "model=actor_critic",
}  # fmt: skip
"""A model for each kind of sample that a dataset gives."""


def check_fit(task: Task, description: Description) -> None:
    """Checks what every task has to.

    Raises:
        ConfigError: parts do not fit; says what to type.
    """
    dataset, model, loss = description.dataset, description.model, description.loss
    own = f"task={task.name}" if task.name else f"the task {type(task).__name__}"
    if task.name and task.name not in dataset.serves:
        others = " or ".join(f"task={name}" for name in dataset.serves)
        options = " or ".join(f"dataset={name}" for name in task.dataset_options)
        instead = f" Or a dataset for {own}, e.g. {options}." if options else ""
        raise ConfigError(f"{own} and the dataset do not fit: its samples are for {others}. Type that.{instead}")
    if dataset.sampler != "shuffle" and not task.has_classes:
        raise ConfigError(
            f"dataset.sampler={dataset.sampler}: samples of {own} have no single class to choose them by. Type "
            "dataset.sampler=shuffle."
        )
    if model.reads and dataset.gives not in model.reads:
        takes = " or ".join(model.reads)
        other = f"a dataset of {takes}, e.g. {DATASETS.get(model.reads[0], 'dataset=digits')}"
        instead = MODELS.get(dataset.gives, "another model, e.g. model=lenet")
        raise ConfigError(f"model takes {takes}, and dataset gives {dataset.gives}. Type {instead}, or {other}.")
    if task.name and model.serves and task.name not in model.serves:
        both = [f"task={name}, or " for name in model.serves if name in type(dataset).serves]
        instead = f"model={task.model_option}" if task.model_option else "another model"
        raise ConfigError(
            f"task={task.name} and the model {type(model).__name__} do not fit: it is for "
            f"{', '.join(model.serves)}. Type {''.join(both)}{instead}."
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
