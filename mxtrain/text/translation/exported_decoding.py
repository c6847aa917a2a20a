"""Beam search with the exported encoder and step, for the metric of an export. Imports MXNet.

Legend: S sentences, R rows (sentences x beams), V vocabulary.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Dict, List, Tuple

import numpy as np

from mxtrain.engine.backend import nd
from mxtrain.text.exported_texts import initial_moving_state, step

if TYPE_CHECKING:
    from mxnet.ndarray import NDArray

    from mxtrain.data.exported_folder import ExportedFolder
    from mxtrain.task.decoding_network import DecodingNetwork


class ExportedDecoder:
    """A `StepDecoder` that runs the parts `encoder` and `step` of an export, in place of a `DecodingNetwork`.

    Args:
        folder: runs the parts.
        network: the network in MXNet, for its device and number of positions.
    """

    def __init__(self, folder: ExportedFolder, network: DecodingNetwork) -> None:
        self.device, self.max_positions = network.device, network.max_positions
        self._folder = folder
        self._fixed: List[str] = []
        self._moving: List[str] = []

    def current(self) -> ExportedDecoder:
        """See `DecodingNetwork`."""
        return self

    def initial_state(self, source: NDArray, length: NDArray) -> Tuple[List[NDArray], List[NDArray]]:
        """See `StepDecoder`."""
        arrays = dict(zip(("source", "lengths"), (source, length)))
        types = {spec["name"]: spec["dtype"] for spec in self._folder.signature["parts"]["encoder"]["inputs"]}
        inputs = {name: arrays[name].asnumpy().astype(dtype) for name, dtype in types.items()}
        fixed = self._folder.run(inputs, "encoder")
        moving = initial_moving_state(self._folder, len(source))
        self._fixed, self._moving = list(fixed), list(moving)
        # An empty array would be one of unknown size to MXNet: the arrays enter with the first step.
        is_empty = any(array.size == 0 for array in moving.values())
        return self._arrays(fixed), [] if is_empty else self._arrays(moving)

    def step(
        self, token_R: NDArray, position: int, fixed: List[NDArray], moving: List[NDArray]
    ) -> Tuple[NDArray, List[NDArray]]:
        """See `StepDecoder`."""
        rows = len(token_R)
        fixed_arrays = {
            name: np.repeat(array, rows // len(array), axis=0)
            for name, array in zip(self._fixed, (array.asnumpy() for array in fixed))
        }
        before = (
            dict(zip(self._moving, (array.asnumpy() for array in moving)))
            if moving
            else initial_moving_state(self._folder, rows)
        )
        token = token_R.asnumpy().astype(np.int32)
        log_p_RV, after = step(
            self._folder, {"token": token, "place": np.array([position], np.float32), **fixed_arrays, **before}
        )
        return nd.array(log_p_RV, ctx=self.device, dtype="float32"), self._arrays(after)

    def _arrays(self, arrays: Dict[str, np.ndarray]) -> List[NDArray]:
        return [nd.array(array, ctx=self.device, dtype=array.dtype) for array in arrays.values()]
