"""A table of embeddings as one trains it with PyTorch: sparse=True and SparseAdam. Needs nothing of mxtrain.

    python -m bench_parts.torch_sparse ROWS STEPS
"""

from __future__ import annotations

import itertools
import os
import sys

import torch
from torch import nn

from bench_parts.sparse_sizes import FIELDS, LR, UNITS, batches
from bench_parts.turn import Turns


def main(rows: int, steps: int) -> None:
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", os.cpu_count() or 1)))
    table, out = nn.Embedding(rows, UNITS, sparse=True), nn.Linear(FIELDS * UNITS, 1)
    nn.init.normal_(table.weight, std=0.01)
    loss = nn.BCEWithLogitsLoss()
    optimizers = torch.optim.SparseAdam(table.parameters(), lr=LR), torch.optim.Adam(out.parameters(), lr=LR)
    given = [tuple(map(torch.from_numpy, batch)) for batch in batches(rows)]
    stream, turns = itertools.cycle(given), Turns()
    turns.next()
    while True:
        for id_BF, target_B1 in itertools.islice(stream, steps):
            for optimizer in optimizers:
                optimizer.zero_grad()
            loss(out(table(id_BF).flatten(1)), target_B1).backward()
            for optimizer in optimizers:
                optimizer.step()
        turns.next()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
