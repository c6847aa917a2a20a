"""Restores the state of a process that a command changes and a Python program wants to keep.

Concurrent calls restore nothing until the last one ends: a call that ends before one that began later hands its saved
state over. Signal handlers belong to the main thread.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import warnings
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Dict, Iterator, List, Tuple

from hydra.core.hydra_config import HydraConfig
from hydra.version import VersionBase

from mxtrain.cluster.stopping import EXIT_CODES, WARNINGS
from mxtrain.config.search_path import current_folder
from mxtrain.errors import NUMPY_SEMANTICS, ConfigError

_SIGNALS = (*EXIT_CODES, *WARNINGS)
_at_import: Dict[str, str] = {}
"""Environment variables that a call set when it imported MXNet. They keep their effect: later calls find them set."""


class _State:
    """State of the process that `restore` puts back."""

    def __init__(self) -> None:
        self._had_mxnet = "mxnet" in sys.modules
        self._environment, self._path, self._folder = dict(os.environ), list(sys.path), current_folder()
        if self._had_mxnet:
            os.environ.update({name: value for name, value in _at_import.items() if name not in self._environment})
        self._loggers = _logger_states()
        # Not `Singleton.set_state`: it scans all plugins of Hydra anew, which takes longer than a prediction.
        self._hydra = HydraConfig.instance().cfg, VersionBase.instance().version_base
        # Not `warnings.catch_warnings`, which threads must leave in the order of their entering.
        self._filters = list(warnings.filters)

    def restore(self) -> None:
        """Restores the state."""
        if not self._had_mxnet and "mxnet" in sys.modules:
            _at_import.update(
                {name: value for name, value in os.environ.items() if self._environment.get(name) != value}
            )
        for name in set(os.environ) - set(self._environment):
            del os.environ[name]
        os.environ.update(self._environment)
        sys.path[:] = self._path
        if self._folder:
            os.chdir(self._folder)
        for logger, level, old_handlers, disabled, propagates in self._loggers:
            for handler in logger.handlers:
                if handler not in old_handlers:
                    handler.close()
            logger.handlers[:], logger.disabled, logger.propagate = old_handlers, disabled, propagates
            logger.setLevel(level)
        warnings.filters[:] = self._filters  # type: ignore[index]  # a list
        warnings._filters_mutated()  # type: ignore[attr-defined]  # else caches of what was shown stay valid
        HydraConfig.instance().cfg, VersionBase.instance().version_base = self._hydra


@dataclass
class _Block:
    thread: int
    state: _State


_LOCK = threading.RLock()
_blocks: List[_Block] = []
"""The blocks of `preserved_process` that threads are in, in the order of entering."""


@contextmanager
def preserved_process() -> Iterator[None]:
    """Restores environment variables, log handlers and levels, warning filters, signal handlers, the current folder,
    the module search path and Hydra's global state at the end.

    While other threads are in such a block, nothing is restored, because they need the state that they have set. The
    last thread restores the state from before the first. Variables that MXNet read when it was imported keep their
    effect, because MXNet stays loaded.

    Raises:
        ConfigError: the caller has switched MXNet to a mode that mxtrain does not support.
    """
    refuse_modes_of_mxnet()
    with _LOCK:
        block = _Block(threading.get_ident(), _State())
        _blocks.append(block)
    in_main_thread = threading.current_thread() is threading.main_thread()
    handlers = [(number, signal.getsignal(number)) for number in _SIGNALS] if in_main_thread else []
    try:
        yield
    finally:
        for number, old_handler in handlers:
            if old_handler is not None:  # None: it was not set from Python, and neither did we
                signal.signal(number, old_handler)
        with _LOCK:
            _leave(block)


def refuse_modes_of_mxnet() -> None:
    """Refuses a call within autograd.record() or train_mode(), and after npx.set_np().

    Raises:
        ConfigError: one of them is on.
    """
    if "mxnet" not in sys.modules:
        return
    from mxtrain.engine.backend import autograd, mx

    if autograd.is_recording() or autograd.is_training():
        raise ConfigError(
            "this call is within autograd.record() or autograd.train_mode(): mxtrain records operators itself. "
            "Leave the scope first."
        )
    if mx.util.is_np_array() or mx.util.is_np_shape():
        raise ConfigError(f"npx.set_np() is on: {NUMPY_SEMANTICS}")


def _leave(block: _Block) -> None:
    later = _blocks[_blocks.index(block) + 1 :]
    _blocks.remove(block)
    # Nested blocks of one thread end in order; only other threads could lose the state that they have set.
    if all(other.thread == block.thread for other in _blocks):
        block.state.restore()
    elif later:
        later[0].state = block.state  # the older one


_LoggerState = Tuple[logging.Logger, int, List[logging.Handler], bool, bool]


def _logger_states() -> List[_LoggerState]:
    logging.getLogger("mxtrain")  # made here, so that it is among them before its first handler
    registered = logging.root.manager.loggerDict.values()
    loggers = [logging.root, *(one for one in registered if isinstance(one, logging.Logger))]
    return [(one, one.level, list(one.handlers), one.disabled, one.propagate) for one in loggers]
