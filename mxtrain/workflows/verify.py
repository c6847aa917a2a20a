"""Verifies that a placement computes the same as one device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Optional

from mxtrain.config.groups import Description
from mxtrain.errors import ConfigError
from mxtrain.kvstore.world import ALONE, World
from mxtrain.terminal.progress import SILENT, WorkProgress
from mxtrain.types import Positive, PositiveFloat, Spec
from mxtrain.workflows.output_file import OutputFile

if TYPE_CHECKING:
    from mxtrain.parallel.differences import Verification


class VerifySettings(Spec):
    """Settings of `verify`, besides overrides."""

    steps: Positive = 3
    """Optimizer steps; the last one's batch is smaller and odd."""
    tolerance: PositiveFloat = 1e-6
    """Largest difference that passes in float64, over the tensor's largest value."""
    output: Optional[OutputFile] = None
    """File for the differences as JSON."""


def verify(
    description: Description, settings: VerifySettings, world: World = ALONE, progress: WorkProgress = SILENT
) -> Verification:
    """Trains a few steps with the placement of a description and on one device, and compares the results.

    Args:
        description: description of the run. Its environment is set, with `exact`.
        settings: number of steps, and tolerance; `output` is not used.
        world: world of this worker; only rank 0 compares.
        progress: shows the steps of both sides.

    Raises:
        ConfigError: no two devices could give the same numbers.
        DataError: the data cannot be read.
    """
    refuse_updates_without_order(description)
    # Imports MXNet: only from here on.
    from mxtrain.training.verification import verify as compare

    return compare(description, settings.steps, settings.tolerance, world, progress)


def refuse_updates_without_order(description: Description) -> None:
    """Rejects asynchronous updates of several workers, whose order is not deterministic, and local SGD.

    Raises:
        ConfigError: the description has them.
    """
    if description.kvstore.servers_update and description.cluster.workers > 1:
        raise ConfigError(
            f"verify: cluster.workers={description.cluster.workers} with {description.kvstore.setting}: gradients are "
            "applied in the order in which they come, so no two runs are the same. Type cluster.workers=1 to prove the "
            "servers' arithmetic, or kvstore=dist_sync."
        )
    if description.kvstore.independent_steps:
        raise ConfigError(
            "verify: kvstore.sync_every trains each worker on its own, which one device does not compute. Leave it out."
        )
