"""MLServer: a custom runtime with adaptive batching (settings of the server and the model: serving_peers.py)."""

from __future__ import annotations

from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceRequest, InferenceResponse
from onnx_model import Model


class Network(MLModel):
    """The Open Inference Protocol v2."""

    async def load(self) -> bool:
        self._model = Model()
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        outputs = self._model.run({one.name: NumpyCodec.decode_input(one) for one in payload.inputs})
        tensors = [NumpyCodec.encode_output(name, array) for name, array in outputs.items()]
        return InferenceResponse(model_name=self.name, outputs=tensors)
