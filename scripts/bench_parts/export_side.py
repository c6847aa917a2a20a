"""MXNet and onnxruntime, or two forms of an exported network, on the same inputs: in turns, in one process."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, Sequence

import numpy as np

MXNET, FUSED, ONNX = "MXNet, as eval runs it", "MXNet, fused graph", "onnxruntime"


def in_turns(calls: Mapping[str, Callable[[], object]], rounds: int) -> Dict[str, List[float]]:
    """Milliseconds of processor time of each call; the order is turned round each time, the first two do not count."""
    found: Dict[str, List[float]] = {name: [] for name in calls}
    for number in range(rounds + 2):
        for name in list(calls) if number % 2 else reversed(list(calls)):
            started = time.process_time()
            calls[name]()
            if number > 1:
                found[name].append(1000 * (time.process_time() - started))
    return found


def resized(arrays: Sequence[np.ndarray], batch: int, length: int) -> List[np.ndarray]:
    """The first sample, so many times; texts are repeated up to so many tokens, and then have this length."""
    found = []
    for array in arrays:
        array = np.repeat(array[:1], batch, axis=0)
        if length and array.ndim == 2:
            array = np.take(array, np.arange(length) % array.shape[1], axis=1)
        if length and array.ndim == 1:
            array = np.full_like(array, length)
        found.append(array)
    return found


def engines(run_dir: str, exported: str, length: int, rounds: int) -> Dict[str, List[float]]:
    """A run's network in MXNet and in onnxruntime, one sample at a time, one thread.

    Args:
        run_dir: of the run.
        exported: the folder of its export, with an open batch.
        length: tokens of a text; 0 = as the data are.
        rounds: calls of each.
    """
    from mxtrain.composing.restored import restore
    from mxtrain.data.spec import choose_split, open_splits
    from mxtrain.engine.backend import mx, nd
    from mxtrain.exporting.network import TracedNetwork
    from mxtrain.exporting.proof import read_samples
    from mxtrain.exporting.standalone import load_session, run

    restored = restore(run_dir, command="export")
    trained = restored.load()
    sampled = read_samples(trained, choose_split(open_splits(restored.dataset), "auto")[1])
    network = TracedNetwork(trained, sampled.arrays)
    arrays = resized(sampled.arrays, 1, length)
    inputs, session = network.enter(arrays), load_session(exported, threads=1)
    on_mxnet = tuple(nd.array(array, dtype=array.dtype) for array in arrays)

    def compute() -> None:
        for output in trained.strategy.predict(on_mxnet):
            output.wait_to_read()

    calls: Dict[str, Callable[[], object]] = {MXNET: compute, ONNX: lambda: run(session, inputs)}
    try:
        calls[FUSED] = _fused(network, inputs)
    except mx.MXNetError as error:
        print(f"no fused graph: {str(error).splitlines()[0]}", file=sys.stderr)
    return in_turns(calls, rounds)


def _fused(network: Any, inputs: Mapping[str, np.ndarray]) -> Callable[[], object]:
    """The same graph by MXNet's fusion for oneDNN. Raises: MXNetError: it does not take the graph."""
    from mxtrain.engine.backend import autograd, nd

    symbol = network.symbol.optimize_for("MKLDNN")
    arrays = {**network.parameters, **inputs}
    given = [nd.array(arrays[name], dtype=arrays[name].dtype) for name in symbol.list_inputs()]
    compiled = nd.CachedOp(symbol, [("static_alloc", True), ("static_shape", True)])

    def compute() -> None:
        with autograd.predict_mode():
            found = compiled(*given)
        for output in found if isinstance(found, (list, tuple)) else [found]:
            output.wait_to_read()

    compute()
    return compute


def forms(folders: Mapping[str, str], batch: int, length: int, rounds: int) -> Dict[str, List[float]]:
    """Exported folders in turns, one thread; the inputs are those of the first one's proof.

    Args:
        folders: by name.
        batch: samples of a call.
        length: tokens of a text; 0 = as the proof has them.
        rounds: calls of each.
    """
    from mxtrain.exporting.standalone import cases_of, load_session, read_arrays, run

    case, _ = cases_of(read_arrays(next(iter(folders.values()))))[0]
    inputs = dict(zip(case, resized(list(case.values()), batch, length)))

    def caller(folder: str) -> Callable[[], object]:
        session = load_session(folder, threads=1)
        return lambda: run(session, inputs)

    return in_turns({name: caller(folder) for name, folder in folders.items()}, rounds)


def file_MB(folder: str) -> float:
    """The size of a network's file."""
    return (Path(folder) / "model.onnx").stat().st_size / 1e6
