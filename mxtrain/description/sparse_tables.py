"""Whether gradients of tables of embeddings hold the rows of a batch alone: what model, optimizer and store allow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Optional, Tuple

from mxtrain.errors import ConfigError

if TYPE_CHECKING:
    from mxtrain.description.groups import Description

PAYS_FROM = 1 << 16
"""Rows of a table from which on `auto` is sparse (an estimate: docs/decisions/0065)."""


def is_lazy(description: Description) -> bool:
    """Whether rows that no gradient reaches stay as they are, whatever the optimizer would do to them."""
    return bool(getattr(description.optimizer, "lazy_update", False))


def sparse_from(description: Description) -> Optional[int]:
    """The rows from which on a table's gradient holds the rows of a batch alone; None: never."""
    wish = description.trainer.sparse_grad
    if wish is False or (wish == "auto" and obstacle(description)[0]):
        return None
    # What lazy updates compute must not depend on where sparse gradients pay.
    return 1 if wish is True or is_lazy(description) else PAYS_FROM


def obstacle(description: Description) -> Tuple[str, str]:
    """The setting that needs gradients of all rows, as a clause, and what to type instead; or two empty strings."""
    optimizer, store = description.optimizer, description.kvstore
    if not optimizer.rowwise:
        return f"optimizer={optimizer.mxnet_name or 'your own'} {optimizer.whole_because}", "optimizer=adam or sgd"
    return store.needs_whole_gradients


def the_tables_must_be_sparse_where_asked(description: Description) -> None:
    """Refuses sparse gradients, or lazy updates, where a setting needs gradients of all rows."""
    wish = description.trainer.sparse_grad
    if wish is False and is_lazy(description):
        raise ConfigError(
            "optimizer.lazy_update=true with trainer.sparse_grad=false: a gradient of all rows moves all rows. Type "
            "trainer.sparse_grad=auto."
        )
    against, remedy = obstacle(description)
    if against and (wish is True or is_lazy(description)):
        asked = "trainer.sparse_grad=true" if wish is True else "optimizer.lazy_update=true"
        other = "trainer.sparse_grad=auto" if wish is True else "optimizer.lazy_update=false"
        raise ConfigError(f"{asked}: {against}. Type {remedy}, or {other}.")
