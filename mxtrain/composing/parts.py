"""Types of the keyword arguments with which the Python API selects the parts of a run: options, settings or objects."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Callable, Mapping, Optional, Sequence, TypeVar, Union

from typing_extensions import TypedDict

if TYPE_CHECKING:
    import mxnet as mx
    from mxnet import gluon

Option = Union[str, Mapping[str, Any]]
"""The name of an option, or a dict of settings."""
Function = TypeVar("Function", bound=Callable[..., Any])


class MeasuredParts(TypedDict, total=False):
    """Parts of a run that an evaluation may replace."""

    loss: Union[Option, gluon.Block, None]
    metric: Union[
        Option, Sequence[str], mx.metric.EvalMetric, Callable[..., Any], Sequence[Any], Mapping[str, Any], None
    ]
    parallel: Optional[Option]
    amp: Optional[Option]
    runtime: Optional[Option]


class PassArguments(TypedDict, total=False):
    """Passes for each sample, see `mxtrain.workflows.passes.PassSettings`."""

    augment: Union[str, Sequence[str], None]
    augment_scales: Union[float, Sequence[float], None]
    tile: Union[str, int, Sequence[int], None]
    tile_overlap: Optional[float]
    tile_blend: Optional[str]


class EvaluatedParts(MeasuredParts, PassArguments, total=False):
    """Arguments of an evaluation."""


class LoadedParts(TypedDict, total=False):
    """Objects that a run was trained with."""

    model: Optional[gluon.Block]
    dataset: Any
    loss: Optional[gluon.Block]
    metric: Any


class SessionParts(MeasuredParts, total=False):
    """Parts of a custom loop."""

    model: Union[Option, gluon.Block, Mapping[str, Any], None]
    dataset: Any
    optimizer: Union[Option, mx.optimizer.Optimizer, Mapping[str, Any], None]
    lr_scheduler: Optional[Option]
    kvstore: Optional[Option]
    distillation: Optional[Option]
    early_stopping: Optional[Option]
    checkpoint: Optional[Option]
    callback: Any
    logger: Union[Option, Sequence[str], None]
    trainer: Optional[Option]
    cluster: Optional[Option]
    experiment: Optional[str]
    debug: Optional[str]


class Parts(SessionParts, total=False):
    """All parts of a run, one for each group of options."""

    task: Optional[Option]


def with_parts(parts: type) -> Callable[[Function], Function]:
    """Returns a decorator that lists the keys of a TypedDict in the signature of a function with ``**parts``.

    Type checkers and most editors read the annotation `Unpack`; notebooks, `help` and `inspect` read this signature.

    Args:
        parts: the TypedDict.
    """

    def decorate(function: Function) -> Function:
        signature = inspect.signature(function)
        own = [parameter for parameter in signature.parameters.values() if parameter.kind is not parameter.VAR_KEYWORD]
        from_parts = [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=None,
                annotation=getattr(annotation, "__forward_arg__", annotation),
            )
            for name, annotation in parts.__annotations__.items()  # includes the keys of its bases
        ]
        function.__signature__ = signature.replace(parameters=[*own, *from_parts])  # type: ignore[attr-defined]
        return function

    return decorate
