"""Runs the network of this folder with PyTorch, for files of the task, and repeats the proof of its outputs.

    python predict.py FILE...               predictions, a JSON object a line; of images and sound also folders
    python predict.py --out FOLDER FILE...  the same; sound and masks are written to FOLDER instead of predicted/
    python predict.py --check               repeats the proof: MXNet's outputs for a few samples, and how files are read

It executes the code of this folder: run it only if you trust where the folder comes from.
"""

from __future__ import annotations

import os
import sys
import warnings
from typing import Any, Dict, List, Sequence

import numpy as np

if __name__ == "__main__":
    HERE = os.path.dirname(os.path.abspath(__file__))
    sys.path.insert(0, HERE)

import exported
import model
import torch

WEIGHTS, DECODING, DECODING_WEIGHTS = "model.safetensors", "decoding.onnx", "decoding.safetensors"


class Described:
    """Name and shape of an input or output."""

    def __init__(self, described: Dict[str, Any]):
        self.name, self.shape = described["name"], described.get("shape", [])


class TorchSession:
    """The network in PyTorch, with the interface of a session of onnxruntime.

    Args:
        folder: the exported folder.
        threads: threads of an operator; 0: all cores.
    """

    def __init__(self, folder: str, threads: int = 0):
        from safetensors.torch import load_file

        if threads:
            torch.set_num_threads(threads)
        self._signature = exported.read_signature(folder, needed=("inputs",))
        self._facts: Dict[str, Any] = self._signature["pytorch"]
        self.network = model.Network()
        self.network.load_state_dict(load_file(os.path.join(folder, WEIGHTS)))
        self.network.eval()
        self._decoding = self._decoder = None
        if self._facts["decoded"] == "onnx":
            self._decoding = load_onnx(folder, threads, DECODING)
        elif self._facts["decoded"]:
            import decoding

            self._decoder = decoding.Decoding()
            if os.path.exists(os.path.join(folder, DECODING_WEIGHTS)):
                self._decoder.load_state_dict(load_file(os.path.join(folder, DECODING_WEIGHTS)))

    def get_inputs(self) -> List[Described]:
        """Returns names and shapes of the inputs."""
        return [Described(one) for one in self._signature["inputs"]]

    def get_outputs(self) -> List[Described]:
        """Returns names and shapes of the outputs."""
        return [Described(one) for one in self._signature["outputs"]]

    def enter(self, inputs: Dict[str, np.ndarray]) -> List[torch.Tensor]:
        """Returns the inputs of the network: images are normalised."""
        tensors = {name: torch.from_numpy(np.array(array)) for name, array in inputs.items()}
        normal = self._facts["normalisation"]
        if normal:
            scale, shift = (torch.tensor(normal[key]).reshape(1, -1, 1, 1) for key in ("scale", "shift"))
            name = self._facts["inputs"][0]
            tensors[name] = tensors[name].float() * scale + shift
        return [tensors[name] for name in self._facts["inputs"]]

    def run(self, names: Sequence[str], inputs: Dict[str, np.ndarray]) -> List[np.ndarray]:
        """Computes outputs by name."""
        with torch.no_grad():
            outputs = self.network(*self.enter(inputs))
            raw = dict(zip(self._facts["outputs"], outputs if isinstance(outputs, tuple) else (outputs,)))
            found = {name: tensor.numpy() for name, tensor in raw.items()}
            if self._decoder is not None:
                made = self._decoder(*(raw[name] for name in self._facts["decodes"]))
                made = made if isinstance(made, tuple) else (made,)
                found.update(zip(self._facts["makes"], (tensor.numpy() for tensor in made)))
        if self._decoding is not None:
            decoded = [one.name for one in self._decoding.get_outputs()]
            read = [one.name for one in self._decoding.get_inputs()]
            found.update(zip(decoded, self._decoding.run(decoded, {name: found[name] for name in read})))
        return [found[name] for name in names]


load_onnx = exported.load_session


def load_session(folder: str, threads: int = 0, name: str = exported.MODEL) -> Any:
    """Opens the network with PyTorch, and its other parts, such as the step of a decoder, with onnxruntime."""
    return TorchSession(folder, threads) if name == exported.MODEL else load_onnx(folder, threads, name)


exported.load_session = load_session
exported.__doc__ = __doc__

if __name__ == "__main__":
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # rows are UTF-8 whatever the locale
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")
    warnings.formatwarning = lambda message, *_, **__: f"warning: {message}\n"
    sys.exit(exported.main(sys.argv[1:], HERE))
