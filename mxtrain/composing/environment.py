"""Prepares a process for MXNet: validates a description, and sets the environment variables that MXNet reads."""

from __future__ import annotations

import os
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Mapping, Sequence, Tuple

from mxtrain import runtime
from mxtrain.amp.spec import Precision
from mxtrain.cluster.member import HOST_WORKERS
from mxtrain.composing.composer import Composed, Composer
from mxtrain.composing.mistakes import WrongOverrides
from mxtrain.config import rules
from mxtrain.config.groups import Description, describe
from mxtrain.config.specs import Where
from mxtrain.data.spec import BaseDataset
from mxtrain.engine.collection import collection_paused
from mxtrain.errors import ConfigError
from mxtrain.parallel.spec import Parallel

if TYPE_CHECKING:
    from mxtrain.types.annotations import Config


@collection_paused()
def compose_and_check(
    composer: Composer, overrides: Sequence[str], together: bool = True
) -> Tuple[Composed, Description]:
    """Returns the composed configuration and its description.

    Args:
        composer: composes the configuration.
        overrides: overrides of the command line.
        together: True to also check that the groups fit each other.

    Raises:
        ConfigError: an override is wrong. The message contains all errors: wrong names, and wrong values of the other
            overrides.
    """
    try:
        composed = composer.compose(overrides)
    except WrongOverrides as error:
        if not error.right:
            raise
        try:
            # Without the wrong overrides the groups may not fit each other, so that is not checked.
            check(composer.compose(error.right), together=False)
        except ConfigError as more:
            raise WrongOverrides([str(error), str(more)], error.right) from None
        raise
    return composed, check(composed, together)


def compose_dataset(composer: Composer, overrides: Sequence[str]) -> Tuple[str, BaseDataset]:
    """Returns the override that chooses a dataset, e.g. "dataset=digits", and the dataset. It need not fit a model.

    Raises:
        ConfigError: an override is wrong.
    """
    composed, description = compose_and_check(composer, overrides, together=False)
    return f"dataset={','.join(composed.chosen('dataset'))}", description.dataset


def check(composed: Composed, together: bool = True) -> Description:
    """Validates a composed configuration. Raises as `describe_here`."""
    return describe_here(composed.config, composed.where, together, composed.objects)


def describe_here(
    config: Config, where: Where, together: bool = True, objects: Mapping[str, Any] = MappingProxyType({})
) -> Description:
    """Validates a configuration, and sets the environment before it imports any class of the user.

    Raises:
        ConfigError: a setting is invalid; the message has one line for each error.
    """
    trainer = config.get("trainer")
    profile = isinstance(trainer, Mapping) and trainer.get("profile") is True

    def set_first(spec: runtime.Runtime, parallel: Parallel, amp: Precision) -> None:
        _apply(spec, parallel, amp, profile)

    return describe(config, where, check_rules=together, set_environment=set_first, objects=objects)


def prepare_environment(description: Description) -> runtime.RuntimeReport:
    """Rejects environment variables that a run must not have, and sets the variables that MXNet reads.

    Raises:
        ConfigError: there is such a variable.
    """
    for rule in rules.ENVIRONMENT_RULES:
        rule(description)
    return set_environment(description)


def set_environment(description: Description, exact: bool = False) -> runtime.RuntimeReport:
    """Sets the variables that MXNet reads when it is imported. Returns a report.

    Setting them again is necessary if the number of workers on this host has changed since.

    Args:
        description: description of the run.
        exact: True to disable TF32, unless the description sets `runtime.tf32`.
    """
    spec = description.runtime
    if exact and spec.tf32 == "auto":
        spec = spec.model_copy(update={"tf32": False})
    return _apply(spec, description.parallel, description.amp, description.trainer.profile)


def _apply(spec: runtime.Runtime, parallel: Parallel, amp: Precision, profile: bool) -> runtime.RuntimeReport:
    # All workers of a host share its cores.
    num_devices = parallel.num_devices() * int(os.environ.get(HOST_WORKERS, "1"))
    return runtime.apply(spec, num_devices=num_devices, bfloat16=amp.dtype == "bfloat16", one_by_one=profile)


def conf_folder_of(path: str) -> str:
    """Returns the folder of a group's options, for messages of processes that got a composed configuration."""
    return f"conf/{path.split('.')[0]}/"
