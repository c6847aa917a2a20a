"""Predicts how long workers take to exchange gradients: replays the messages of a step over links. No MXNet here.

Models: the ring all-reduce of Patarasuk and Yuan, https://doi.org/10.1016/j.jpdc.2008.09.002 (Horovod), and servers
that receive each bucket from all workers before they send its sum back (ps-lite). Links carry both directions at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import List, Optional, Sequence, Tuple

BUCKET_BYTES = 4 << 20
"""Default size of a message; equals `mxtrain.kvstore.buckets.BUCKET_BYTES`, whose module imports MXNet."""
SIZE = {"none": 1.0, "fp16": 0.5, "bf16": 0.5}
"""Compression -> bytes that travel / bytes of the gradients."""


@dataclass(frozen=True)
class Link:
    """The link of each machine.

    Attributes:
        bytes_per_s: in each direction; None: all workers are on this machine, and messages cost the processor only.
        latency_s: of a message, one way.
    """

    bytes_per_s: Optional[float] = None
    latency_s: float = 0.0


def split_buckets(gradient_bytes: float, bucket_bytes: float = BUCKET_BYTES) -> List[float]:
    """Returns the sizes of the messages of a worker's gradients.

    Args:
        gradient_bytes: bytes of the gradients.
        bucket_bytes: size of a full message.

    >>> split_buckets(9 << 20)
    [4194304, 4194304, 1048576]
    """
    full = int(gradient_bytes // bucket_bytes)
    rest = gradient_bytes - full * bucket_bytes
    return [*[bucket_bytes] * full, *([rest] if rest else [])]


def link_seconds(store: str, num_workers: int, buckets: Sequence[float], link: Link) -> float:
    """Returns the seconds from the first message to the last on links alone, one worker on each machine.

    The server of a parameter server is beside worker 0, with which it does not use the link.

    Args:
        store: "horovod", or a store with a server.
        num_workers: at least 2.
        buckets: bytes of each message.
        link: link of each machine.
    """
    if link.bytes_per_s is None:
        return 0.0
    if store == "horovod":
        rounds = 2 * (num_workers - 1)
        return sum(rounds * (link.latency_s + size / num_workers / link.bytes_per_s) for size in buckets)
    pushed_s = pulled_s = 0.0
    for size in buckets:
        sent_s = (num_workers - 1) * size / link.bytes_per_s
        pushed_s += sent_s
        # The answer begins when the last worker's message has come, and the answers before it are sent.
        pulled_s = max(pulled_s, pushed_s + link.latency_s) + sent_s
    return pulled_s + link.latency_s


def traffic(store: str, num_workers: int, gradient_bytes: float) -> Tuple[float, float]:
    """Returns the bytes per step of a worker (sent and received), and of the busiest machine.

    Args:
        store: "horovod", or a store with a server.
        num_workers: number of workers.
        gradient_bytes: bytes of a worker's message.
    """
    if num_workers == 1:
        return 0.0, 0.0
    if store == "horovod":
        own = 2 * 2 * (num_workers - 1) / num_workers * gradient_bytes
        return own, own
    own = 2 * gradient_bytes
    return own, own + num_workers * own  # worker 0 and the server
