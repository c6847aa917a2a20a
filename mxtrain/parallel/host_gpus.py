"""Gives each worker of a host GPUs of its own."""

from __future__ import annotations

from mxtrain.cluster.launched import OWN_GPUS, has_own_gpus
from mxtrain.cluster.member import HostPlace, find_host_place
from mxtrain.errors import ConfigError


def place_among_gpus(num_gpus: int) -> HostPlace:
    """Position of this worker among the workers that see the same GPUs.

    Args:
        num_gpus: that this process sees.
    """
    return HostPlace() if has_own_gpus(num_gpus) else find_host_place()


def share_of(place: HostPlace, num_gpus: int) -> int:
    """Returns the number of GPUs of one worker on a host; 1 if there are fewer GPUs than workers, which `first_of`
    refuses."""
    return max(num_gpus // place.size, min(num_gpus, 1))


def first_of(place: HostPlace, wanted: int, num_gpus: int, devices: str) -> int:
    """Returns the index of a worker's first GPU: workers take consecutive GPUs.

    Args:
        place: of the worker.
        wanted: GPUs of each worker.
        num_gpus: that this process sees.
        devices: `parallel.devices`, for the message.

    Raises:
        ConfigError: they have taken too many.
    """
    first = place.rank * wanted
    if first + wanted <= num_gpus:
        return first
    taken = [f"worker {rank} {_names(rank * wanted, wanted)}" for rank in range(min(place.rank, num_gpus // wanted))]
    left = range(len(taken) * wanted, num_gpus)
    rest = f"{_names(left.start, len(left))} {'is' if len(left) == 1 else 'are'}" if left else "none is"
    fitting = num_gpus // place.size
    fewer = f"parallel.devices=gpu:{fitting}, or " if fitting else ""
    raise ConfigError(
        f"parallel.devices={devices}: each worker computes on {_count(wanted)} of its own, and the {place.size} "
        f"workers of this host see {_count(num_gpus)}: {', '.join(taken)} (counted on this host), and for worker "
        f"{place.rank} {rest} left. Type {fewer}a smaller cluster.workers. If what starts them sets "
        f"CUDA_VISIBLE_DEVICES to other GPUs for each, let it set {OWN_GPUS}=1, too."
    )


def _names(first: int, count: int) -> str:
    return " and ".join(f"gpu({number})" for number in range(first, first + count))


def _count(number: int) -> str:
    return f"{number} GPU{'s' * (number != 1)}"
