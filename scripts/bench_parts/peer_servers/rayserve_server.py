"""Ray Serve: a deployment with @serve.batch; the argument is the number of replicas."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any, Dict, List

import ray
from onnx_model import MAX_BATCH, PORT, WAIT_S, Arrays, Model, to_lists
from ray import serve
from starlette.requests import Request


@serve.deployment(max_ongoing_requests=512, ray_actor_options={"num_cpus": 1})
class Network:
    """JSON: nested lists by input name; application/octet-stream: the bytes of the only input."""

    def __init__(self) -> None:
        self._model = Model()

    @serve.batch(max_batch_size=MAX_BATCH, batch_wait_timeout_s=WAIT_S)
    async def compute(self, requests: List[Arrays]) -> List[Arrays]:
        return self._model.run_all(requests)

    async def __call__(self, request: Request) -> Dict[str, Any]:
        if request.headers["content-type"] == "application/octet-stream":
            return to_lists(await self.compute(self._model.from_bytes(await request.body())))
        return to_lists(await self.compute(self._model.arrays(await request.json())))


if __name__ == "__main__":
    ray.init(num_cpus=2, include_dashboard=False, _temp_dir=os.environ["BENCH_FOLDER"], log_to_driver=False)
    serve.start(http_options={"host": "127.0.0.1", "port": PORT})
    serve.run(Network.options(num_replicas=int(sys.argv[1])).bind())
    signal.sigwait({signal.SIGTERM})
