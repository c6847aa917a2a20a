"""Loads what a worker needs, in a process that may have to take the place of one, or that forks for each run."""

from __future__ import annotations

import logging
import os
import sys
from contextlib import suppress
from typing import Callable, List, Mapping, Optional

from mxtrain.cluster import fork_server
from mxtrain.cluster.member import wait_until_needed
from mxtrain.composing.environment import prepare_environment
from mxtrain.config.groups import Description
from mxtrain.config.search_path import module_command
from mxtrain.engine.collection import collection_paused
from mxtrain.errors import EXIT_FINISHED, MxtrainError
from mxtrain.kvstore.world import World
from mxtrain.runtime import preloaded, spinning
from mxtrain.runtime.apply import SET_BY_MXTRAIN, is_set_by_mxtrain, lets_threads_spin


def stand_by(description: Description) -> Optional[List[str]]:
    """Loads libraries, and data and network once, and waits; see `wait_until_needed`."""
    prepare_environment(description)
    logging.disable(logging.CRITICAL)  # the process that takes the place says everything again
    try:
        # Errors are those of the process that takes the place: by then, the files may be other ones.
        with suppress(MxtrainError):
            _import_libraries(description)
            _open_inputs(description)
    finally:
        logging.disable(logging.NOTSET)
    return wait_until_needed()


def serve_forks(describe: Callable[[], Description]) -> List[str]:
    """Loads the libraries of a run, and forks for each run; see `mxtrain.cluster.fork_server`.

    Args:
        describe: composes and checks the first run.

    Returns:
        In each fork, the arguments of its command line. The server itself never returns.
    """
    connection = fork_server.take_connection()
    before_imports = dict(os.environ)
    preloaded.begin_server()
    logging.disable(logging.CRITICAL)
    try:
        with collection_paused(freeze=True):
            description = describe()
            if description.kvstore.distributed:
                sys.exit(EXIT_FINISHED)  # a supervisor of several processes imports no MXNet
            prepare_environment(description)
            _import_libraries(description)
            from mxtrain.engine.backend import mx

            if mx.context.num_gpus():
                # Counting GPUs has initialised CUDA, which works in no fork; each run counts them, also one on the CPU.
                sys.exit(EXIT_FINISHED)
            import mxtrain.kvstore.mxnet_store
            import mxtrain.parallel.grid  # noqa: F401
            from mxtrain.archive.provenance import PACKAGE_FOLDER, own_code, own_git_state

            # The forks record the code that was imported here, also if its files have changed since.
            own_git_state(str(PACKAGE_FOLDER))
            own_code(description.config)
    except MxtrainError:
        sys.exit(EXIT_FINISHED)  # the run says it again
    finally:
        logging.disable(logging.NOTSET)
    order = fork_server.serve(connection)
    _begin_fork(order, before_imports)
    return order.arguments


def _begin_fork(order: fork_server.Order, before_imports: Mapping[str, str]) -> None:
    """Makes a fork like a new process that has just imported the libraries.

    Args:
        order: the run.
        before_imports: variables of the server before it imported anything.
    """
    import numpy

    numpy.random.seed()  # otherwise all forks would draw the same numbers
    lets_spin = lets_threads_spin()
    # Imports also change variables: OpenCV puts a folder in front of LD_LIBRARY_PATH.
    set_by_imports = {
        name: value
        for name, value in os.environ.items()
        if value != before_imports.get(name)
        and order.environment.get(name) == before_imports.get(name)
        and name != SET_BY_MXTRAIN
        and not is_set_by_mxtrain(name)
    }
    command = [*module_command("mxtrain"), *order.arguments]
    preloaded.enter(command, order.environment, set_by_imports)
    if lets_spin:
        spinning.start()


def _import_libraries(description: Description) -> None:
    # Imports MXNet: only from here on.
    import mxtrain.cluster.launch.run  # noqa: F401
    from mxtrain.training.build import open_inputs  # noqa: F401
    from mxtrain.training.callback_list import build_callbacks  # noqa: F401

    if description.kvstore.ring:
        from mxtrain.kvstore.horovod_store import load_horovod

        load_horovod()


def _open_inputs(description: Description) -> None:
    from mxtrain.training.batch_size import is_automatic
    from mxtrain.training.build import open_inputs

    # An automatic batch size would be found by training, and a network on GPUs would take their memory.
    devices = [device for stages in description.parallel.resolve_devices() for device in stages]
    if not is_automatic(description) and all(device.device_type == "cpu" for device in devices):
        # A rank above 0, which neither hashes the data nor needs the files of initial values.
        open_inputs(description, World(1, 2))
