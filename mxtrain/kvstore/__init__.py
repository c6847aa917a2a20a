"""Gradient stores: where the gradients of replicas meet."""

from __future__ import annotations

from typing import Any, List, Sequence

from mxtrain.types import Spec


class KVStore(Spec):
    """Describes where the gradients of replicas meet. A new one is a subclass and one YAML in conf/kvstore/."""

    def build(self) -> Any:
        """The store of one run: `reduce(gradients)` sums each parameter's gradients over its replicas, in place."""
        raise NotImplementedError(f"{type(self).__name__} does not say how to build its store.")


class Local(KVStore):
    """Sums on the first device of this process."""

    def build(self) -> LocalStore:
        return LocalStore()


class LocalStore:
    """Gradients of one process. With one replica there is nothing to add up."""

    def reduce(self, gradients: Sequence[List[Any]]) -> None:
        """Sums each parameter's gradients over its replicas, in place.

        Args:
            gradients: per parameter, one NDArray per replica.
        """
        for replicas in gradients:
            if len(replicas) > 1:
                raise NotImplementedError("more than one replica needs a strategy that places them")
