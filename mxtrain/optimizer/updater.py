"""Applies an optimizer to parameters, and reads and restores its state in canonical form."""

from __future__ import annotations

import math
from contextlib import nullcontext
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Collection, Dict, FrozenSet, List, Mapping, Optional, Sequence, Tuple, Union

import numpy as np

from mxtrain.checkpoint import require_same_arrays
from mxtrain.checkpoint.pieces import write_rows
from mxtrain.engine.backend import mx, nd, same_device_runs
from mxtrain.errors import CheckpointError, ConfigError
from mxtrain.optimizer.native_update import NativeUpdate
from mxtrain.optimizer.rows import TouchedRows, exact_update, lazy_update
from mxtrain.optimizer.state import OptimizerState, flatten, map_state

if TYPE_CHECKING:
    from mxtrain.types.annotations import Json, JsonObject

AGGREGATED_UPDATES = 45
"""Maximum number of arrays of a fused update in MXNet. It iterates up to the size of the largest array for all of them,
which is fast only for small arrays of similar sizes. A momentum update of ResNet-50 takes 182 ms with 45 arrays at a
time, 121 ms with MXNet's default of 4, and 87 ms with single arrays."""
COUNTERS = ("num_update", "last_lr", "cur_lr")
"""Attributes of MXNet's optimizers that change in training. A checkpoint sets no other attributes."""
MIN_SEPARATE_SIZE = 1 << 13
"""Arrays with at least this number of elements are not fused with others."""
MIN_RATE = 1e-30
"""Smaller learning rates count as 0: FTRL and FTML multiply by the inverse of the rate, which would overflow."""


def create_state(optimizer: mx.optimizer.Optimizer, index: int, weight: nd.NDArray, name: str) -> OptimizerState:
    """Creates the optimizer state of one parameter, in float64 for a float64 parameter.

    Some of MXNet's optimizers always create float32 state.

    Raises:
        ConfigError: the optimizer cannot train an array of this shape.
    """
    try:
        # GroupAdaGrad reports with an AssertionError that it cannot train vectors.
        state = optimizer.create_state_multi_precision(index, weight)
        return map_state(state, in_float64) if weight.dtype == np.float64 else state
    except AssertionError:
        raise ConfigError(
            f"optimizer: {type(optimizer).__name__} trains only matrices, and '{name}' has shape {weight.shape}. "
            "Freeze it by model.freeze, or choose another optimizer."
        ) from None


def in_float64(array: nd.NDArray) -> nd.NDArray:
    """Converts a float32 array to float64; returns arrays of other types unchanged."""
    return array.astype(np.float64) if array.dtype == np.float32 else array


def group_similar_sizes(indices: Sequence[int], arrays: Sequence[nd.NDArray], ratio: float = 4) -> List[List[int]]:
    """Groups arrays for fused updates: the sizes in a group differ at most by the factor `ratio`.

    Args:
        indices: indices into `arrays`.
        arrays: parameters.
        ratio: largest ratio of sizes.

    Arrays of at least `MIN_SEPARATE_SIZE` elements get a group of their own.
    """
    groups: List[List[int]] = []
    largest = 0
    for index in sorted(indices, key=lambda index: -arrays[index].size):  # arrays of similar size become neighbours
        size = arrays[index].size
        if (
            not groups
            or largest >= MIN_SEPARATE_SIZE
            or ratio * size < largest
            or len(groups[-1]) == AGGREGATED_UPDATES
        ):
            groups.append([])
            largest = size
        groups[-1].append(index)
    return groups


def _group_by_dtype(indices: Sequence[int], arrays: Sequence[nd.NDArray]) -> List[List[int]]:
    """Groups the `indices` of `arrays` by dtype."""
    by_type: Dict[Any, List[int]] = {}
    for index in indices:
        by_type.setdefault(np.dtype(arrays[index].dtype), []).append(index)
    return list(by_type.values())


class Updater:
    """Applies one optimizer to a fixed, ordered set of parameters, each of which lives on one device.

    A parameter with a learning rate of 0 is skipped: weight decay and momentum do not change it or its state, and the
    update is not counted. MXNet's optimizers would divide by the rate or ignore it.

    Args:
        optimizer: an mxnet.optimizer.Optimizer.
        weights: structural name -> parameter to train.
        multipliers: structural name -> (lr_mult, wd_mult).
        rows: structural name of a table -> rows that its gradient covers, for tables with row-wise gradients.
        lazy: if True, rows without a gradient and their state stay unchanged; otherwise weight decay and momentum move
            them as a gradient of 0 would.
    """

    def __init__(
        self,
        optimizer: mx.optimizer.Optimizer,
        weights: Mapping[str, nd.NDArray],
        multipliers: Mapping[str, Tuple[float, float]],
        rows: Optional[Mapping[str, TouchedRows]] = None,
        lazy: bool = False,
    ):
        self.names = list(weights)
        self._rows = {i: rows[name] for i, name in enumerate(self.names) if rows and name in rows}
        self._lazy = lazy
        self._optimizer = optimizer
        # Keyed by index. Keyed by name, MXNet silently sets wd_mult to 0 for names that don't end in "_weight".
        optimizer.lr_mult = {i: multipliers[name][0] for i, name in enumerate(self.names)}
        optimizer.wd_mult = {i: multipliers[name][1] for i, name in enumerate(self.names)}
        optimizer.idx2name = dict(enumerate(self.names))  # LARS recognises biases, gamma and beta by their names
        # Must precede get_updater, which reads `aggregate_num` only once.
        if optimizer.aggregate_num > 0:
            optimizer.aggregate_num = AGGREGATED_UPDATES
        # MXNet counts updates per device, because each replica updates its own copy. Here each parameter has one
        # device, and a single count is kept.
        optimizer._set_current_context = lambda device_id: None
        self._updater = mx.optimizer.get_updater(optimizer)
        self._weights = [weights[name] for name in self.names]
        self._groups: Dict[Tuple[int, ...], List[List[int]]] = {}
        self._frozen: FrozenSet[int] = frozenset()
        self._native = optimizer if isinstance(optimizer, NativeUpdate) else None
        self._has_native = self._native is not None and self._native.has_native
        for i, weight in enumerate(self._weights):
            # Parameters with a rate of 0 have a count as well, so a checkpoint has the same names whatever is frozen.
            optimizer._index_update_count[i] = 0
            if optimizer.lr_mult[i]:
                self._updater.states[i] = create_state(optimizer, i, weight, self.names[i])
                self._updater.states_synced[i] = True  # without this, MXNet's updater raises KeyError

    @property
    def accepts_factor(self) -> bool:
        """Returns True if `update` accepts a factor: native operators apply it while they read the gradients."""
        return self._has_native

    def update(self, gradients: Sequence[nd.NDArray], lr: float, factor: Optional[nd.NDArray] = None) -> None:
        """Updates all parameters once.

        Args:
            gradients: gradients of the mean loss, in the order of `names`.
            lr: learning rate.
            factor: number (1,) by which all gradients are multiplied first; only allowed if `accepts_factor`.
        """
        self._optimizer.lr = lr
        if factor is not None:
            with self._optimizer.multiplying(factor):
                self._update_all(gradients, lr)
        else:
            self._update_all(gradients, lr)

    def _update_all(self, gradients: Sequence[nd.NDArray], lr: float) -> None:
        for group in self._groups_at(lr):
            if group[0] in self._rows:
                self._update_rows(group[0], gradients[group[0]])
                continue
            if not self._has_native:
                self._updater(group, [gradients[i] for i in group], [self._weights[i] for i in group])
                continue
            # The same calls as MXNet's updater makes, but without its per-array type checks in every step.
            weights, states = [self._weights[i] for i in group], [self._updater.states[i] for i in group]
            self._optimizer.update_multi_precision(group, weights, [gradients[i] for i in group], states)

    def _update_rows(self, i: int, gradient: nd.NDArray) -> None:
        weight, state, rows = self._weights[i], self._updater.states[i], self._rows[i]
        # With several devices the sum of gradients may lie elsewhere than the table.
        gradient = gradient.as_in_context(weight.context)
        # If a gradient of 0 changes no weight, the lazy update has the bits of the exact one and reads fewer rows.
        lazy = self._lazy or self._ignores_zero_gradient(i)
        if self._native is not None and self._native.update_rows(i, weight, gradient, state, rows, lazy):
            return
        # The updates below get temporary copies and views, so a bound call could not be reused in the next step.
        with nullcontext() if self._native is None else self._native.unbound():
            (lazy_update if lazy else exact_update)(self._optimizer, i, weight, state, rows, gradient)

    @property
    def moves_all_rows(self) -> bool:
        """Returns True if an update changes rows of tables that have no gradient, by weight decay or momentum."""
        return not self._lazy and not all(self._ignores_zero_gradient(i) for i in self._rows)

    def _ignores_zero_gradient(self, i: int) -> bool:
        """Returns True if a gradient of 0 leaves parameter `i` unchanged, so that an exact update can be a lazy one."""
        optimizer = self._optimizer
        has_no_momentum = isinstance(optimizer, (mx.optimizer.AdaGrad, mx.optimizer.contrib.GroupAdaGrad)) or (
            isinstance(optimizer, mx.optimizer.SGD) and optimizer.momentum == 0
        )
        return has_no_momentum and optimizer.wd * optimizer.wd_mult[i] == 0

    def freeze(self, names: Collection[str]) -> None:
        """Skips these parameters in all further updates, as if their learning rate were 0."""
        self._frozen = frozenset(i for i, name in enumerate(self.names) if name in names)

    def skip(self) -> None:
        """Handles a step without samples. Does nothing here; updaters on servers must notify the servers."""

    def _groups_at(self, lr: float) -> List[List[int]]:
        """Returns the indices of parameters with a nonzero learning rate, in groups for fused updates. Cached."""
        multipliers = self._optimizer.lr_mult
        # Parameters with a rate of 0 are left out, because SGD, NAG and LARS would still move them by their momentum.
        trained = tuple(
            i for i in range(len(self.names)) if abs(lr * multipliers[i]) >= MIN_RATE and i not in self._frozen
        )
        # Schedules change the rate, but rarely the set of trained parameters, so groups are cached by this set.
        if trained not in self._groups:
            dense = [i for i in trained if i not in self._rows]
            weights = [self._weights[i] for i in dense]
            groups = [group for indices in same_device_runs(weights) for group in _group_by_dtype(indices, weights)]
            if self._optimizer.aggregate_num > 0:
                # Native operators process one array after the other, so sizes in a group may differ.
                ratio = math.inf if self._has_native else 4
                groups = [group for indices in groups for group in group_similar_sizes(indices, weights, ratio)]
            # Tables are updated one by one, because each has rows of its own.
            row_groups = [[i] for i in trained if i in self._rows]
            self._groups[trained] = [[dense[i] for i in group] for group in groups] + row_groups
        return self._groups[trained]

    def synchronize(self, own_arrays: Sequence[nd.NDArray] = ()) -> bool:
        """Returns True if updates of other workers changed the parameters. Always False here: all workers make the same
        updates."""
        return False

    def scalars(self) -> Dict[str, float]:
        """Returns statistics of servers that update parameters, for loggers; none here."""
        return {}

    summary = scalars  # none here either; see `RemoteUpdater.summary`

    def arrays(self) -> Dict[str, nd.NDArray]:
        """Returns the optimizer state as arrays named `<parameter>:<position>`."""
        state = {
            f"{name}:{position}": array
            for i, name in enumerate(self.names)
            for position, array in enumerate(flatten(self._updater.states.get(i)))
        }
        # LBSGD holds 0, not an array, between two accumulations.
        for i, gathered in getattr(self._optimizer, "cumgrads", {}).items():
            if isinstance(gathered["cum_grad"], nd.NDArray):
                state[f"{self.names[i]}:cum_grad"] = gathered["cum_grad"]
        return state

    def numbers(self) -> JsonObject:
        """Returns the state in attributes of MXNet's optimizer: update counts, and counters of LARS and LBSGD."""
        return {
            "update_counts": {name: self._optimizer._index_update_count[i] for i, name in enumerate(self.names)},
            "attributes": self._counters(),
            "cum_counts": {
                self.names[i]: gathered["num_cums"] for i, gathered in getattr(self._optimizer, "cumgrads", {}).items()
            },
        }

    def save_state(self) -> Tuple[Mapping[str, nd.NDArray], Mapping[str, Json]]:
        """See `Stateful`."""
        return self.arrays(), self.numbers()

    def load_state(self, arrays: Mapping[str, np.ndarray], values: JsonObject, source: str) -> None:
        """See `Stateful`."""
        self.restore(arrays, values)

    def restore(self, arrays: Mapping[str, np.ndarray], numbers: JsonObject) -> None:
        """Restores a state that `arrays` and `numbers` returned (arrays as NumPy).

        Raises:
            CheckpointError: the state belongs to another optimizer or another network.
        """
        # LBSGD has a `cum_grad` only in the middle of an accumulation, so its presence may differ.
        current = {name: array for name, array in self.arrays().items() if not name.endswith(":cum_grad")}
        untrained = {name for i, name in enumerate(self.names) if not self._optimizer.lr_mult[i]}
        loaded = {
            name: array
            for name, array in arrays.items()
            if not name.endswith(":cum_grad") and name.rpartition(":")[0] not in untrained
        }
        require_same_arrays(current, loaded, "the checkpoint's optimizer state")
        self._require_same_numbers(numbers)
        for name, array in current.items():
            # Written into the existing arrays, because bound calls of the optimizer refer to them.
            write_rows(loaded[name], array)
        self.restore_numbers(numbers, arrays)

    def _require_same_numbers(self, numbers: JsonObject) -> None:
        # An untrusted checkpoint may name any attribute of the optimizer, so only known counters are set.
        unexpected = sorted({*numbers["attributes"]} - {*COUNTERS})
        unexpected = unexpected or sorted({*numbers["update_counts"]} ^ {*self.names})
        if unexpected:
            names = ", ".join(unexpected[:5])
            raise CheckpointError(f"the checkpoint's optimizer state does not fit: look at {names}.")

    def restore_numbers(self, numbers: JsonObject, arrays: Mapping[str, np.ndarray] = MappingProxyType({})) -> None:
        """Restores the state that `numbers` returned, and the gradients that LBSGD has accumulated from `arrays`.

        Raises:
            CheckpointError: the state belongs to another optimizer or another network.
        """
        self._require_same_numbers(numbers)
        for name, value in numbers["attributes"].items():
            setattr(self._optimizer, name, value)
        for i, name in enumerate(self.names):
            self._optimizer._index_update_count[i] = numbers["update_counts"][name]
            if name in numbers["cum_counts"]:
                gathered: Union[None, int, np.ndarray, nd.NDArray] = arrays.get(f"{name}:cum_grad")
                weight = self._weights[i]
                gathered = 0 if gathered is None else nd.array(gathered, ctx=weight.context, dtype=weight.dtype)
                self._optimizer.cumgrads[i] = {"cum_grad": gathered, "num_cums": numbers["cum_counts"][name]}

    def _counters(self) -> Dict[str, float]:
        """Returns the attributes in `COUNTERS` that the optimizer has; all others follow from the settings."""
        optimizer = self._optimizer
        values = {name: getattr(optimizer, name, None) for name in COUNTERS}
        return {name: value for name, value in values.items() if value is not None}
