"""The same table trained with mxtrain's step, or with a loop of Gluon's, whose gradient has all rows or is row_sparse.

    python -m bench_parts.sparse_side lazy|exact|gluon|gluon_sparse ROWS STEPS
"""

from __future__ import annotations

import itertools
import sys
from typing import Any, Callable, List

from bench_parts.sparse_sizes import BATCH, FIELDS, LR, UNITS, batches
from bench_parts.turn import Turns
from mxtrain.build import hybridize
from mxtrain.dataset.loading.prefetch import prefetch
from mxtrain.engine.backend import autograd, gluon, mx, nd
from mxtrain.kvstore.mxnet_store import MXNetStore
from mxtrain.metric.meter import Meter
from mxtrain.model.graph.id_inputs import make_sparse
from mxtrain.model.networks.embedding_table import EmbeddingTable
from mxtrain.model.prepare import initialize
from mxtrain.optimizer.ema import NoAverage
from mxtrain.optimizer.optimizers import Adam
from mxtrain.optimizer.updater import Updater
from mxtrain.parallel.base import Objective
from mxtrain.parallel.strategies import Single
from mxtrain.trainer.step import TrainingStep
from mxtrain.types import Batch


class Scorer(gluon.HybridBlock):
    """Ids (B, F) to scores (B, 1)."""

    def __init__(self, rows: int, sparse_grad: bool = False, **kwargs: Any):
        super().__init__(**kwargs)
        with self.name_scope():
            if sparse_grad:  # Gluon's own
                self.table = gluon.nn.Embedding(rows, UNITS, sparse_grad=True)
            else:
                self.table = EmbeddingTable(rows, UNITS)
            self.out = gluon.nn.Dense(1, in_units=FIELDS * UNITS)

    def hybrid_forward(self, F, id_BF):
        return self.out(self.table(id_BF))


def build(kind: str, rows: int) -> gluon.Block:
    network = Scorer(rows, sparse_grad=kind == "gluon_sparse")
    if kind not in ("gluon", "gluon_sparse"):
        make_sparse(network, (FIELDS,), 1)
    initialize(network, "xavier", 0, mx.cpu(0))
    return hybridize(network)


def own_steps(kind: str, rows: int, given: List[Batch]) -> Callable[[int], None]:
    """Number of steps -> makes them: mxtrain's step, and what the loader's thread does for it."""
    loss = gluon.loss.SigmoidBCELoss()
    loss.hybridize(static_alloc=True)
    strategy = Single().build(Objective(build(kind, rows), loss, Meter({}, 1), (FIELDS,), BATCH), 1)
    weights = {name: strategy.values[name] for name in strategy.trainable}
    updater = Updater(
        Adam(lr=LR).build(1), weights, dict.fromkeys(weights, (1.0, 1.0)), strategy.rows, lazy=kind == "lazy"
    )
    step = TrainingStep(strategy, MXNetStore("local"), updater, NoAverage(), None, None)
    stream = prefetch(lambda: map(strategy.look_ahead, itertools.cycle(given)), 2)
    count = itertools.count(1)

    def run(steps: int) -> None:
        for batch in itertools.islice(stream, steps):
            step(batch, LR, next(count))

    return run


def gluon_steps(kind: str, rows: int, given: List[Batch]) -> Callable[[int], None]:
    """The same by Gluon's Trainer."""
    network, loss = build(kind, rows), gluon.loss.SigmoidBCELoss()
    loss.hybridize(static_alloc=True)
    trainer = gluon.Trainer(network.collect_params(), "adam", {"learning_rate": LR})
    stream = itertools.cycle(given)

    def run(steps: int) -> None:
        for batch in itertools.islice(stream, steps):
            with autograd.record():
                value = loss(network(*batch.inputs), *batch.targets)
            value.backward()
            trainer.step(BATCH)

    return run


def main(kind: str, rows: int, steps: int) -> None:
    given = [Batch((nd.array(i, dtype="int32"),), (nd.array(t),), BATCH) for i, t in batches(rows)]
    run = (gluon_steps if kind.startswith("gluon") else own_steps)(kind, rows, given)
    turns = Turns()
    turns.next()
    while True:
        run(steps)
        nd.waitall()
        turns.next()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
