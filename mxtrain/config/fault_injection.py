"""Checks if faults can be injected into a run (`debug=chaos`)."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Dict, Optional, Sequence

from mxtrain.callback.chaos import CHILD, Chaos
from mxtrain.errors import ConfigError
from mxtrain.private_sockets.slow_link import RING_LINKS

if TYPE_CHECKING:
    from mxtrain.config.groups import Description


def find_chaos(description: Description) -> Optional[Chaos]:
    """Returns the faults that a description asks for; None in the processes in which they are injected."""
    specs = (spec for spec in description.callback.values() if isinstance(spec, Chaos))
    return None if CHILD in os.environ else next(specs, None)


def delayable_links(description: Description) -> Sequence[int]:
    """Returns the links that `SlowLinks.hold` can delay: ranks of workers that talk to servers, or links of a ring.

    Empty if there is a single process, or if some processes run on other machines.
    """
    store, cluster = description.kvstore, description.cluster
    if cluster.launcher != "local":
        return ()
    if store.ring:
        return (RING_LINKS,) if cluster.workers > 1 else ()
    return range(cluster.workers) if store.van is not None else ()


def impossible_faults(description: Description) -> Dict[str, str]:
    """Returns the kinds of faults after which a run cannot be compared, or that cannot happen, with the reason."""
    reasons = {}
    if not delayable_links(description):
        reasons["delay"] = "no workers of this machine talk to servers or to each other, so there is no link to delay."
    if description.kvstore.ring:
        reasons["kill"] = (
            "the other workers of a ring go on at once and divide the batch among themselves, so the last bits of the "
            "sums differ."
        )
    return reasons


def check_faults(description: Description) -> None:
    """Rejects faults in a run that could not be compared with another one, or in which none of them can happen."""
    chaos = find_chaos(description)
    if chaos is None:
        return
    if description.kvstore.updates and description.cluster.workers > 1:
        raise ConfigError(
            "debug=chaos with kvstore=dist_async: gradients are applied in the order of their arrival, so no two "
            "runs are the same. Type kvstore=dist_sync."
        )
    if description.cluster.launcher != "local":
        raise ConfigError(
            f"cluster.launcher={description.cluster.launcher}: debug=chaos disturbs only processes of this machine. "
            "Type cluster.launcher=local."
        )
    if description.trainer.max_time is not None:
        raise ConfigError(
            f"trainer.max_time={description.trainer.max_time}: a budget of time ends two runs at different steps. "
            "Leave it out, or type trainer.max_steps=N for debug=chaos."
        )
    left_out = impossible_faults(description)
    if set(chaos.faults) <= set(left_out):
        reasons = " ".join(left_out[kind] for kind in dict.fromkeys(chaos.faults))
        raise ConfigError(
            f"callback.chaos.faults=[{','.join(chaos.faults)}]: {reasons} Type kvstore=dist_sync cluster.workers=2, or "
            "other faults."
        )
    if "jsonl" not in description.logger or not description.checkpoint.saves:
        raise ConfigError(
            "debug=chaos compares metrics.jsonl and resumes from checkpoints. Leave out settings that disable "
            "logger=jsonl or checkpoint."
        )
