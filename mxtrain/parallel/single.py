"""Everything on one device."""

from __future__ import annotations

from typing import Any, Tuple

from mxtrain.errors import ConfigError
from mxtrain.parallel.base import Objective, Parallel, Strategy


class Single(Parallel):
    """One device."""

    def place(self) -> Tuple[Any, ...]:
        from mxtrain.backend import mx

        if self.num_devices() != 1:
            raise ConfigError(
                f"parallel.devices={self.devices}: parallel=single uses one device. Type "
                "parallel.devices=cpu:1 or gpu:1."
            )
        num_gpus = mx.context.num_gpus()
        if self.devices.startswith("gpu") and num_gpus == 0:
            raise ConfigError(
                f"parallel.devices={self.devices}: MXNet sees no GPU here. Type parallel.devices=cpu:1, or see what "
                "`python -m mxtrain doctor` says about CUDA."
            )
        on_gpu = self.devices.startswith("gpu") or (self.devices == "auto" and num_gpus > 0)
        return (mx.gpu(0) if on_gpu else mx.cpu(0),)

    def build(self, objective: Objective, grad_accumulation: int) -> Strategy:
        from mxtrain.parallel.on_device import SingleDevice

        return SingleDevice(objective, grad_accumulation)
