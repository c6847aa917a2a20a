"""A network that looks ids up in tables, and what trains it, for tests of gradients of some rows."""

from __future__ import annotations

from typing import Any, Dict, Optional, Sequence

import numpy as np

from mxtrain.engine.backend import gluon, mx, nd
from mxtrain.kvstore.mxnet_store import MXNetStore
from mxtrain.kvstore.world import World
from mxtrain.loss.losses import SoftmaxCrossEntropy
from mxtrain.metric.meter import Meter
from mxtrain.model.graph.id_inputs import make_sparse, tables_of
from mxtrain.model.networks.embedding_table import EmbeddingTable
from mxtrain.model.parameters import distinct_parameters
from mxtrain.model.prepare import initialize
from mxtrain.optimizer.ema import build_average
from mxtrain.optimizer.updater import Updater
from mxtrain.parallel.base import TableUpdates
from mxtrain.parallel.objective import Objective
from mxtrain.parallel.spec import Single
from mxtrain.training.network import hybridize
from mxtrain.training.step import TrainingStep
from mxtrain.types import Batch

ROWS, FIELDS, NUMBERS = 40, 3, 2
SHAPES = ((FIELDS,), (NUMBERS,))
TABLES = ("first.weight", "second.weight")


class Scorer(gluon.HybridBlock):
    """A linear term and a dense part over two tables of the same ids."""

    def __init__(self, **kwargs: Any):
        super().__init__(**kwargs)
        with self.name_scope():
            self.first, self.second = EmbeddingTable(ROWS, 3, 0.5), EmbeddingTable(ROWS, 4, 0.5)
            self.hidden = gluon.nn.Dense(8, activation="tanh", in_units=4 * FIELDS + NUMBERS)
            self.out = gluon.nn.Dense(3, in_units=8)

    def hybrid_forward(self, F, id_BF, number_BN):
        vector_BU = F.concat(F.flatten(self.second(id_BF)), number_BN, dim=1)
        return self.out(self.hidden(vector_BU)) + F.sum(self.first(id_BF), axis=1)


def build_network(sparse: bool, kind: Any = Scorer, dtype: str = "float32", remote_rows: bool = False) -> Any:
    """Initialised; the same numbers whether sparse or not, and with its tables on servers."""
    network = kind(prefix="scorer_")
    if sparse:
        assert make_sparse(network, SHAPES, 1) == []
    initialize(network, "xavier", 0, mx.cpu(0), tables_of(network) if remote_rows else ())
    network.cast(dtype)
    return hybridize(network)


def build_step(
    optimizer: Any,
    sparse: bool = True,
    lazy: bool = False,
    placement: Any = None,
    store: Any = None,
    parts: int = 1,
    clip: Optional[float] = None,
    batch_size: int = 8,
    network: Any = None,
    dtype: str = "float32",
) -> TrainingStep:
    """A step of such a network; `optimizer` describes one."""
    network = build_network(sparse, dtype=dtype) if network is None else network
    objective = Objective(
        network,
        SoftmaxCrossEntropy().build(3, training=True),
        Meter({}, 3),
        SHAPES,
        batch_size,
        global_batch_size=batch_size,
    )
    return step_of(objective, optimizer, placement, store, parts, lazy, clip)


def step_of(
    objective: Objective,
    optimizer: Any,
    placement: Any = None,
    store: Any = None,
    parts: int = 1,
    lazy: bool = False,
    clip: Optional[float] = None,
) -> TrainingStep:
    """A step whose tables on servers are connected; `optimizer` describes one."""
    store = store or MXNetStore("local")
    strategy = (placement or Single()).build(objective, parts, store)
    weights = {name: strategy.values[name] for name in strategy.trainable}
    if strategy.remote.names:
        parameters = distinct_parameters(strategy.objective.network)
        multipliers = {name: (float(parameters[name].lr_mult), 1.0) for name in strategy.remote.names}
        strategy.remote.connect(store, TableUpdates(optimizer.model_dump(), multipliers, 1, 0))
    updater = Updater(optimizer.build(1), weights, dict.fromkeys(weights, (1.0, 1.0)), strategy.rows, lazy)
    average = build_average(None, strategy.values, strategy.publish)
    return TrainingStep(strategy, store, updater, average, clip, None)


def batch(seed: int, size: int = 8) -> Batch:
    """Ids that come again within the batch and in others; most rows are in none."""
    rng = np.random.RandomState(seed)
    id_BF = rng.choice([0, 3, 4, 7, 11, 20, 38, 39], (size, FIELDS))
    inputs = (nd.array(id_BF, dtype="int32"), nd.array(rng.randn(size, NUMBERS)))
    return Batch(inputs, (nd.array(rng.randint(0, 3, size)),), size)


def train_shares(step: TrainingStep, world: World, sizes: Sequence[int]) -> None:
    """A step by this worker's share of each batch, which may be empty."""
    for number, size in enumerate(sizes, 1):
        whole = batch(number, size)
        begin, end = world.share(size)
        share = whole.slice(begin, end, size) if end > begin else Batch((), (), 0, size)
        step(step.strategy.look_ahead(share), 0.1 / number, number)


def values(step: TrainingStep) -> Dict[str, np.ndarray]:
    """Parameters and the optimizer's state, on the host."""
    state, _ = step.states["optimizer"].save_state()
    arrays = {**step.strategy.values, **{f"state {name}": one for name, one in state.items()}}
    return {name: array[:].asnumpy() for name, array in arrays.items()}
