"""Loads what a worker needs, in a process that may have to take the place of one."""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import List, Optional

from mxtrain.cluster.standby import wait_until_needed
from mxtrain.composing.environment import prepare_environment
from mxtrain.config.groups import Description
from mxtrain.errors import MxtrainError
from mxtrain.kvstore.world import World


def stand_by(description: Description) -> Optional[List[str]]:
    """Loads libraries, and data and network once, and waits; see `wait_until_needed`."""
    prepare_environment(description)
    logging.disable(logging.CRITICAL)  # the process that takes the place says everything again
    try:
        # Errors are those of the process that takes the place: by then, the files may be other ones.
        with suppress(MxtrainError):
            _load(description)
    finally:
        logging.disable(logging.NOTSET)
    return wait_until_needed()


def _load(description: Description) -> None:
    # Imports MXNet: only from here on.
    import mxtrain.cluster.launch.run  # noqa: F401
    from mxtrain.training.batch_size import is_automatic
    from mxtrain.training.build import open_inputs
    from mxtrain.training.callback_list import build_callbacks  # noqa: F401

    if description.kvstore.ring:
        from mxtrain.kvstore.horovod_store import load_horovod

        load_horovod()
    # An automatic batch size would be found by training, and a network on GPUs would take their memory.
    devices = [device for stages in description.parallel.resolve_devices() for device in stages]
    if not is_automatic(description) and all(device.device_type == "cpu" for device in devices):
        # A rank above 0, which neither hashes the data nor needs the files of initial values.
        open_inputs(description, World(1, 2))
