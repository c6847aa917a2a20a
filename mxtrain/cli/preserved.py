"""Restores the state of a process that a command changes and a Python program wants to keep."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import warnings
from contextlib import contextmanager
from typing import Dict, Iterator, List, Tuple

from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.version import VersionBase

from mxtrain.process.stopping import EXIT_CODES, WARNINGS

_SIGNALS = (*EXIT_CODES, *WARNINGS)
_at_import: Dict[str, str] = {}
"""Environment variables that a call set when it imported MXNet. They keep their effect: later calls find them set."""


@contextmanager
def preserved_process() -> Iterator[None]:
    """Restores environment variables, log handlers and levels, warning filters, signal handlers, the current folder,
    the module search path and Hydra's global state at the end.

    Variables that MXNet read when it was imported keep their effect, because MXNet stays loaded.
    """
    environment, path, had_mxnet = dict(os.environ), list(sys.path), "mxnet" in sys.modules
    folder = os.getcwd()
    if had_mxnet:
        os.environ.update({name: value for name, value in _at_import.items() if name not in environment})
    loggers = _logger_states()
    hydra, config, version = GlobalHydra.instance(), HydraConfig.instance(), VersionBase.instance()
    # Not `Singleton.set_state`: it scans all plugins of Hydra anew, which takes longer than a prediction.
    hydra_state = hydra.hydra, config.cfg, version.version_base
    in_main_thread = threading.current_thread() is threading.main_thread()
    handlers = [(number, signal.getsignal(number)) for number in _SIGNALS] if in_main_thread else []
    with warnings.catch_warnings():
        try:
            yield
        finally:
            if not had_mxnet and "mxnet" in sys.modules:
                changed = {name: value for name, value in os.environ.items() if environment.get(name) != value}
                _at_import.update(changed)
            os.environ.clear()
            os.environ.update(environment)
            sys.path[:] = path
            os.chdir(folder)
            for logger, level, old_handlers, disabled, propagates in loggers:
                for handler in logger.handlers:
                    if handler not in old_handlers:
                        handler.close()
                logger.handlers[:], logger.disabled, logger.propagate = old_handlers, disabled, propagates
                logger.setLevel(level)
            for number, old_handler in handlers:
                if old_handler is not None:  # None: it was not set from Python, and neither did we
                    signal.signal(number, old_handler)
            hydra.hydra, config.cfg, version.version_base = hydra_state


_LoggerState = Tuple[logging.Logger, int, List[logging.Handler], bool, bool]


def _logger_states() -> List[_LoggerState]:
    logging.getLogger("mxtrain")  # made here, so that it is among them before its first handler
    registered = logging.root.manager.loggerDict.values()
    loggers = [logging.root, *(one for one in registered if isinstance(one, logging.Logger))]
    return [(one, one.level, list(one.handlers), one.disabled, one.propagate) for one in loggers]
