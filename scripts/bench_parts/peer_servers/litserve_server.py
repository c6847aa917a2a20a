"""LitServe: a LitAPI with batching and the fast queue; the argument is the number of HTTP processes."""

from __future__ import annotations

import sys
from typing import List

import litserve as ls
from onnx_model import MAX_BATCH, PORT, WAIT_S, Arrays, Model, to_lists


class Network(ls.LitAPI):
    """JSON: nested lists by input name."""

    def setup(self, device: str) -> None:
        self._model = Model()

    def decode_request(self, request) -> Arrays:  # type: ignore[no-untyped-def]  # annotations would add a validation of bodies
        return self._model.arrays(request)

    def batch(self, inputs: List[Arrays]) -> List[Arrays]:
        return inputs

    def predict(self, batch: List[Arrays]) -> List[Arrays]:
        return self._model.run_all(batch)

    def unbatch(self, output: List[Arrays]) -> List[Arrays]:
        return output

    def encode_response(self, output):  # type: ignore[no-untyped-def]
        return to_lists(output)


if __name__ == "__main__":
    api = Network(max_batch_size=MAX_BATCH, batch_timeout=WAIT_S)
    server = ls.LitServer(api, accelerator="cpu", workers_per_device=1, fast_queue=True, timeout=120)
    server.run(
        host="127.0.0.1", port=PORT, num_api_servers=int(sys.argv[1]), generate_client_file=False, log_level="error"
    )
