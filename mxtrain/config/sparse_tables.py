"""Decides whether embedding tables have row-sparse gradients, which contain only the rows of a batch.

Sparse and dense updates take the same time at about 4 million numbers (2^22) of the tables that share ids, if the ids
of a batch are at most a sixteenth of the rows; several workers begin at 2^20, because a dense gradient is a message of
all rows. Measured with Adam and SGD on one thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Optional, Tuple

from mxtrain.data.spec import samples_per_step
from mxtrain.errors import ConfigError

if TYPE_CHECKING:
    from mxtrain.config.description import Description

PAYS_FROM = 1 << 22
"""Elements in the tables of an input from which `auto` is sparse if one worker trains: 16 MB. Measured."""
WORKERS_PAY_FROM = 1 << 20
"""The same for several workers, whose sparse gradients are also smaller messages."""


def is_lazy(description: Description) -> bool:
    """Returns True if the optimizer does not update rows without a gradient, not even by momentum or weight decay."""
    return description.optimizer.is_lazy


def sparse_from(description: Description) -> Optional[int]:
    """Returns the number of elements from which tables of an input get row-sparse gradients; None: never."""
    sparse_grad = description.trainer.sparse_grad
    if sparse_grad is False or (sparse_grad == "auto" and obstacle(description)[0]):
        return None
    if applies_to_all_sizes(description):
        return 1
    # 2^20 is an estimate from what messages cost; 2^22 was measured.
    return WORKERS_PAY_FROM if description.cluster.workers > 1 else PAYS_FROM


def sparse_samples(description: Description) -> int:
    """Returns the number of samples of a batch; 0 if it does not matter.

    With `auto` on one worker, a table is sparse only if the ids of a batch are few compared with its rows.
    """
    if applies_to_all_sizes(description) or description.cluster.workers > 1:
        return 0
    return samples_per_step(description.dataset)


def applies_to_all_sizes(description: Description) -> bool:
    """Returns True if tables of any size are sparse.

    Lazy updates compute another result than dense ones, which must not depend on whether sparse gradients are faster.
    """
    return description.trainer.sparse_grad is True or is_lazy(description)


def obstacle(description: Description) -> Tuple[str, str]:
    """Returns the setting that needs dense gradients, as a clause, and what to type instead; or two empty strings."""
    optimizer, store = description.optimizer, description.kvstore
    if not optimizer.rowwise:
        return f"optimizer={optimizer.mxnet_name or 'your own'} {optimizer.dense_reason}", "optimizer=adam or sgd"
    return store.needs_whole_gradients


def check_sparse_tables(description: Description) -> None:
    """Rejects sparse gradients or lazy updates together with a setting that needs dense gradients."""
    sparse_grad = description.trainer.sparse_grad
    if sparse_grad is False and is_lazy(description):
        raise ConfigError(
            "optimizer.lazy_update=true with trainer.sparse_grad=false: a gradient of all rows moves all rows. Type "
            "trainer.sparse_grad=auto."
        )
    conflict, remedy = obstacle(description)
    if conflict and (sparse_grad is True or is_lazy(description)):
        setting = "trainer.sparse_grad=true" if sparse_grad is True else "optimizer.lazy_update=true"
        alternative = "trainer.sparse_grad=auto" if sparse_grad is True else "optimizer.lazy_update=false"
        raise ConfigError(f"{setting}: {conflict}. Type {remedy}, or {alternative}.")


def check_served_tables(description: Description) -> None:
    """Rejects tables on servers together with settings that read or change whole tables in a worker."""
    store, trainer = description.kvstore, description.trainer
    if not store.serves_tables:
        return
    conflict, remedy = obstacle(description)
    is_summed = not store.servers_update and description.cluster.workers > 1
    conflicts = [
        (bool(conflict), conflict, remedy),
        (trainer.sparse_grad is False, "trainer.sparse_grad=false: gradients of all rows", "trainer.sparse_grad=auto"),
        (
            trainer.ema_decay is not None,
            f"trainer.ema_decay={trainer.ema_decay}: the average is of whole tables",
            "trainer.ema_decay=null",
        ),
        (
            description.amp.scales_loss,
            "amp=float16: a step is left out where a gradient overflows, which no worker sees of the others' rows",
            "amp=bfloat16",
        ),
        (
            is_summed and trainer.clip_global_norm is not None,
            f"trainer.clip_global_norm={trainer.clip_global_norm}: no "
            "worker knows the norm of the sum of all workers' gradients",
            "optimizer.clip_gradient=1",
        ),
    ]
    for applies, reason, alternative in conflicts:
        if applies:
            raise ConfigError(f"kvstore.tables=servers with {reason}. Type {alternative}, or kvstore.tables=workers.")
