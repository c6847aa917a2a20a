"""BentoML: a service with a batchable API. `bentoml serve bentoml_server:Network`; BENCH_WORKERS processes."""

from __future__ import annotations

import os
from typing import Any, Dict, List

import bentoml
from onnx_model import MAX_BATCH, Model, to_lists


@bentoml.service(
    workers=int(os.environ["BENCH_WORKERS"]),
    traffic={"timeout": 120, "max_concurrency": 1024},
    logging={"access": {"enabled": False}},
)
class Network:
    """JSON: {"requests": [{nested lists by input name}]}."""

    def __init__(self) -> None:
        self._model = Model()

    @bentoml.api(batchable=True, max_batch_size=MAX_BATCH, max_latency_ms=100_000)
    def predict(self, requests: List[Dict[str, Any]]) -> List[Dict[str, Any]]:
        return [to_lists(one) for one in self._model.run_all([self._model.arrays(values) for values in requests])]
