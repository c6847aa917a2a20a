"""The Python API from several threads at once: composing, and the state of the process afterwards."""

from __future__ import annotations

import gc
import logging
import os
import sys
import threading
import warnings
from pathlib import Path
from typing import Any, Callable, List, Sequence

import pytest

import mxtrain
from mxtrain.cluster.launch.preserved import preserved_process
from mxtrain.config.specs import import_target
from mxtrain.engine.collection import collection_paused

THREADS = 6


def together(work: Callable[[int], None], count: int = THREADS) -> List[BaseException]:
    """Calls a function in several threads at the same time; returns what it raised."""
    start, raised = threading.Barrier(count), []

    def run(number: int) -> None:
        start.wait()
        try:
            work(number)
        except BaseException as error:
            raised.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return raised


def state() -> Any:
    loggers = [(one.level, list(one.handlers), one.disabled) for one in (logging.root, logging.getLogger("mxtrain"))]
    return dict(os.environ), list(sys.path), os.getcwd(), list(warnings.filters), loggers, gc.isenabled()


@pytest.mark.slow
def test_threads_compose_independently_and_restore_the_process() -> None:
    """More than once, since threads rarely meet: a switch of threads every 10 microseconds."""
    before, interval, found = state(), sys.getswitchinterval(), {}
    sys.setswitchinterval(1e-5)
    try:

        def work(number: int) -> None:
            config = mxtrain.compose("model=mlp", f"optimizer.lr=0.{number + 1}", f"trainer.seed={number}")
            found[number] = (config["optimizer"]["lr"], config["trainer"]["seed"])

        assert together(work) == []
    finally:
        sys.setswitchinterval(interval)
    assert found == {number: ((number + 1) / 10, number) for number in range(THREADS)}
    assert state() == before


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2), (1, 2, 0), (0, 2, 1), (2, 0, 1)])
def test_blocks_that_overlap_restore_the_state_from_before_the_first(
    order: Sequence[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks end in each order; a block that ends does not change the state of the others."""
    monkeypatch.setenv("MXTRAIN_TEST_CHANGED", "before")
    before = state()
    entered, leave, left = ([threading.Event() for _ in range(3)] for _ in range(3))

    def work(number: int) -> None:
        with preserved_process():
            os.environ["MXTRAIN_TEST_CHANGED"] = os.environ[f"MXTRAIN_TEST_{number}"] = str(number)
            warnings.simplefilter("error", UserWarning)
            logging.getLogger("mxtrain").addHandler(logging.NullHandler())
            entered[number].set()
            leave[number].wait(20)
            with preserved_process():  # as a call within another one
                os.environ["MXTRAIN_TEST_INNER"] = "1"
            assert os.environ[f"MXTRAIN_TEST_{number}"] == str(number)
        left[number].set()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for number, thread in enumerate(threads):
        thread.start()
        entered[number].wait(20)
    for number in order:
        leave[number].set()
        left[number].wait(20)
    assert [event.is_set() for event in left] == [True] * 3
    assert state() == before


def test_blocks_in_one_thread_restore_their_own_state() -> None:
    with preserved_process():
        os.environ["MXTRAIN_TEST_OUTER"] = "1"
        with preserved_process():
            os.environ["MXTRAIN_TEST_OUTER"] = "2"
        assert os.environ["MXTRAIN_TEST_OUTER"] == "1"
    assert "MXTRAIN_TEST_OUTER" not in os.environ


def test_the_collector_continues_after_the_last_pause() -> None:
    first, second = collection_paused(), collection_paused()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert not gc.isenabled()
    second.__exit__(None, None, None)
    assert gc.isenabled()
    gc.disable()
    try:
        with collection_paused():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_ctrl_c_in_an_import_raises_keyboard_interrupt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python 3.11 raises a RuntimeError for a KeyboardInterrupt in `__set_name__`, in the middle of a class."""
    (tmp_path / "interrupted_module.py").write_text(
        "class Name:\n    def __set_name__(self, owner, name):\n        raise KeyboardInterrupt\n\n\n"
        "class Model:\n    name = Name()\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(KeyboardInterrupt):
        import_target("interrupted_module.Model", "model")


def test_ctrl_c_in_hydra_raises_keyboard_interrupt(monkeypatch: pytest.MonkeyPatch) -> None:
    from mxtrain.composing.config_files import ConfigFiles

    def interrupted(*arguments: Any) -> None:
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt as error:
            raise RuntimeError("Error calling __set_name__") from error

    monkeypatch.setattr(ConfigFiles, "load", interrupted)
    with pytest.raises(KeyboardInterrupt):
        mxtrain.compose("model=mlp")
    monkeypatch.undo()
    monkeypatch.setattr("hydra.core.override_parser.overrides_parser.OverridesParser.parse_overrides", interrupted)
    with pytest.raises(KeyboardInterrupt):
        mxtrain.compose("model=mlp")
