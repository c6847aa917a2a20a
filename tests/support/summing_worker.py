"""One of the workers of a hierarchical all-reduce; prints what it summed. Started by test_hierarchical.py."""

from __future__ import annotations

import json
import os
import sys
from typing import Any, List

import numpy as np

from mxtrain.engine.backend import nd
from mxtrain.kvstore.horovod_store import HorovodStore
from mxtrain.kvstore.reduction import Reduction
from mxtrain.kvstore.world import World

rank, size = int(os.environ["HOROVOD_RANK"]), int(os.environ["HOROVOD_SIZE"])
store = HorovodStore(World(rank, size), hierarchical=sys.argv[1] == "True", bucket_bytes=1200)
arrays = [
    nd.array(np.random.RandomState(10 * rank + number).randn(length)) for number, length in enumerate((5, 70_000))
]
hierarchy = store._hierarchy
hierarchical_sums: List[Any] = []
if hierarchy is not None:
    own_sum = hierarchy.sum_in_place

    def noted_sum(*given: Any) -> None:
        hierarchical_sums.append(given)
        own_sum(*given)

    hierarchy.sum_in_place = noted_sum  # type: ignore[method-assign]
found = []
for _ in range(3):
    store.sum_in_place(arrays)
    store.wait_for(arrays)
    found.append([float(array.asnumpy().astype(np.float64).sum()) for array in arrays])
    digest = [array.asnumpy().tobytes().hex()[:40] for array in arrays]
total = store.total([rank, 0.5])
buckets = store.buckets_of([Reduction(name, [nd.zeros((300,))], 0) for name in "abc"])
own_set = hierarchy is not None and hierarchy._own is not None
print("RESULT " + json.dumps([found, digest, total.tolist(), len(hierarchical_sums) >= 6, own_set, len(buckets)]))
store.close()
