"""Modules that a library imports at its start and that a run hardly ever uses, executed when they are first used.

MXNet imports requests for its downloads, and scipy.sparse its algorithms on graphs: together with what setuptools puts
in distutils' place that is a fifth of the import. Measured: 1.13 s of processor time, and 1.41 s without this (medians
of 5 in turn).
"""

from __future__ import annotations

import sys
import threading
from contextlib import contextmanager
from importlib.abc import Loader
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Collection, Iterator, Optional, Sequence


class _LateModule(ModuleType):
    """A module that is found and not executed yet."""

    def __getattribute__(self, name: str) -> object:
        # Every further `import` looks into __spec__: importlib.util.LazyLoader takes that for a use.
        if name not in ("__spec__", "__class__"):
            self.__spec__.loader_state.execute(self)  # type: ignore[union-attr]
        return ModuleType.__getattribute__(self, name)  # its class may have changed: no super()


class _LateLoader(Loader):
    """Executes a module when it is first looked into, once, whichever thread does."""

    def __init__(self, loader: Loader) -> None:
        self._loader, self._lock, self._begun = loader, threading.RLock(), False

    def create_module(self, spec: ModuleSpec) -> Optional[ModuleType]:
        spec.loader_state = self
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        module.__class__ = _LateModule

    def execute(self, module: ModuleType) -> None:
        """Other threads wait; the module's own code, which comes here too, goes on."""
        with self._lock:
            if self._begun:
                return
            self._begun = True
            try:
                self._loader.exec_module(module)
            except BaseException:
                self._begun = False
                raise
            module.__class__ = ModuleType
            if module.__spec__ is not None:
                module.__spec__.loader = module.__loader__ = self._loader


class _LateFinder:
    """Finds modules of these names as Python does, with a loader that waits."""

    def __init__(self, names: Collection[str]) -> None:
        self._names = names

    def find_spec(
        self, name: str, path: Optional[Sequence[str]] = None, target: Optional[ModuleType] = None
    ) -> Optional[ModuleSpec]:
        found = PathFinder.find_spec(name, path, target) if name in self._names else None
        if found is not None and found.loader is not None:
            found.loader = _LateLoader(found.loader)
        return found


@contextmanager
def imported_late(names: Collection[str]) -> Iterator[None]:
    """While it lasts, importing modules of these names does not execute them; one that is missing stays missing."""
    finder = _LateFinder(names)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


@contextmanager
def distutils_of_python() -> Iterator[None]:
    """While it lasts, `distutils` is the standard library's. Afterwards it is not imported: setuptools warns of it.

    MXNet wants one class of it, for which setuptools' stand-in imports most of setuptools.
    """
    stand_ins = [finder for finder in sys.meta_path if type(finder).__name__ == "DistutilsMetaFinder"]
    before = set(sys.modules)
    for finder in stand_ins:
        sys.meta_path.remove(finder)
    try:
        yield
    finally:
        sys.meta_path[:0] = stand_ins
        for name in [name for name in sys.modules if name.partition(".")[0] == "distutils" and name not in before]:
            del sys.modules[name]
