"""Lists the placements that `mxtrain plan` compares: names and numbers, no MXNet."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import Iterator, List, Sequence, Tuple

MICROBATCHES = (1, 2, 4, 8)
ACCUMULATIONS = (1, 2, 4)
PLACING = ("parallel", "kvstore", "cluster.workers", "cluster.servers", "trainer.grad_accumulation")
"""Groups and settings that a placement chooses."""


@dataclass(frozen=True)
class Placement:
    """Placement of a run on workers x replicas x stages devices.

    Attributes:
        replicas, stages: axes of each worker, see `mxtrain.parallel.spec`.
        microbatches: number of microbatches of a replica's share of a part.
        accumulation: number of parts of a batch.
        workers: number of processes.
        store, compression: options of `kvstore` for several workers.
        precision: option of `amp`.
        recompute: value of `parallel.recompute`.
    """

    replicas: int = 1
    stages: int = 1
    microbatches: int = 1
    accumulation: int = 1
    workers: int = 1
    store: str = "local"
    compression: str = "none"
    precision: str = "off"
    recompute: str = "off"

    @property
    def variant(self) -> Tuple[str, str]:
        """Returns the choices for which everything is measured anew: precision and recomputation."""
        return self.precision, self.recompute

    @property
    def num_devices(self) -> int:
        """Returns the number of devices of a worker."""
        return self.replicas * self.stages

    @property
    def option(self) -> str:
        """Returns the option of the group `parallel`."""
        if self.stages == 1:
            return "single" if self.replicas == 1 else "data"
        if self.replicas > 1:
            return "hybrid"
        return "model" if self.microbatches == 1 else "pipeline"

    def microbatch_size(self, batch_size: int) -> int:
        """Returns the largest number of samples that a device computes at once for a global batch."""
        return -(-batch_size // (self.workers * self.accumulation * self.replicas * self.microbatches))

    def overrides(self, kind: str = "") -> List[str]:
        """Returns the overrides of this placement.

        Args:
            kind: "cpu" or "gpu", to be named; empty: the devices of a machine without GPUs.
        """
        option = self.option
        words = [f"parallel={option}"]
        if option in ("data", "hybrid"):
            words.append(f"parallel.replicas={self.replicas}")
        if self.stages > 1:
            words.append(f"parallel.stages={self.stages}")
        if option in ("pipeline", "hybrid"):
            words.append(f"parallel.microbatches={self.microbatches}")
        if kind:
            words.append(f"parallel.devices={kind}:{self.num_devices}")
        if self.recompute != "off":
            words.append(f"parallel.recompute={self.recompute}")
        if self.accumulation > 1:
            words.append(f"trainer.grad_accumulation={self.accumulation}")
        if self.workers > 1:
            words += [f"kvstore={self.store}", f"cluster.workers={self.workers}"]
        if self.compression != "none":
            words.append(f"kvstore.compression={self.compression}")
        return [*words, f"amp={self.precision}"]


def powers_to(largest: int) -> List[int]:
    """Returns 1, 2, 4, ... below `largest`, and `largest`.

    >>> powers_to(6)
    [1, 2, 4, 6]
    """
    return [*(2**power for power in range(largest.bit_length()) if 2**power < largest), largest]


def enumerate_placements(
    num_devices: int,
    workers: Sequence[int],
    stores: Sequence[str],
    compressions: Sequence[str],
    variants: Sequence[Placement] = (Placement(),),
    accumulations: Sequence[int] = ACCUMULATIONS,
) -> Iterator[Placement]:
    """Yields all placements: 1, 2, 4, ... replicas and stages on at most `num_devices` devices of each worker.

    Several workers have no gradient accumulation, which saves memory that each of them has less need of.

    Args:
        num_devices: largest number of devices of a worker.
        workers: numbers of workers.
        stores, compressions: options of several workers.
        variants: placements of one device with each precision and recomputation.
        accumulations: numbers of parts of a batch.
    """
    for variant, count in itertools.product(variants, workers):
        inner = list(_enumerate_within_worker(num_devices, accumulations if count == 1 else (1,)))
        exchanges = itertools.product(stores, compressions) if count > 1 else [("local", "none")]
        for (store, compression), one in itertools.product(exchanges, inner):
            yield replace(
                one,
                workers=count,
                store=store,
                compression=compression,
                precision=variant.precision,
                recompute=variant.recompute,
            )


def _enumerate_within_worker(num_devices: int, accumulations: Sequence[int]) -> Iterator[Placement]:
    for replicas in powers_to(num_devices):
        for stages in powers_to(num_devices // replicas):
            for microbatches, parts in itertools.product(MICROBATCHES if stages > 1 else (1,), accumulations):
                yield Placement(replicas, stages, microbatches, parts)


def replaces_placement(word: str) -> bool:
    """Returns True if an override sets what a placement chooses.

    `parallel.batch_norm` and settings of a store other than its choice say what is computed, and stay.
    """
    key = word.lstrip("+~").partition("=")[0].partition("@")[0]
    if key.startswith("parallel."):
        return key != "parallel.batch_norm"
    return key in PLACING or key == "kvstore.compression"
