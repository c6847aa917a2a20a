"""Replaces an exported network by a quantized one, and compares metric, latency and size of both on this machine."""

from __future__ import annotations

import math
import shutil
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Literal, Mapping, Sequence, Tuple

import numpy as np

from mxtrain.errors import ConfigError, MxtrainError
from mxtrain.export import quantize, standalone
from mxtrain.export.comparison import FLOAT32
from mxtrain.export.proof import with_onnx
from mxtrain.parallel.recurrent_state import RecurrentState
from mxtrain.runtime.amx import cpu_flags
from mxtrain.runtime.cores import processor_name, usable_cores
from mxtrain.training.loaders import build_loader, take

if TYPE_CHECKING:
    from mxtrain.data.base import Samples
    from mxtrain.export.network import TracedNetwork
    from mxtrain.export.proof import Case
    from mxtrain.trained import Trained

Format = Literal["none", "int8", "float16", "bfloat16"]
TOLERANCES = {"int8": 0.05, "float16": standalone.MAX_ERROR, "bfloat16": standalone.MAX_ERROR}
"""Largest relative error of a repeated proof. Activations are rounded to 8 bits: a last bit that another processor
computes otherwise can move some of them by a whole level. Weights of 16 bits are computed with in float32."""
BATCHES = (1, 32)
ROUNDS, LEAST_ROUNDS, SECONDS = 50, 2, 1.0
"""Calls of each network at most, at least, and the time after which no further ones begin."""
ROWS = 8
"""Samples of a batch of calibration: all activations of one are in memory."""


class WorseThanAllowed(MxtrainError):
    """The metric of the quantized network is worse by more than `max_loss`."""

    exit_code = 1


@dataclass(frozen=True)
class Compression:
    """Settings of a quantization.

    Attributes:
        form: "int8", "float16" or "bfloat16".
        max_loss: largest allowed decrease of the monitored metric, relative to its value for metrics above 1.
        train: the training split, for calibration.
        samples: number of its samples from which activation ranges are taken.
    """

    form: Format
    max_loss: float
    train: Samples
    samples: int


@dataclass(frozen=True)
class Subject:
    """An exported network, its proof and the data to evaluate it.

    Attributes:
        trained: the network in MXNet.
        network: the traced network.
        is_open: whether the batch dimension is open; else it is 1.
        cases: cases of the proof.
        source: samples for the evaluation.
        limit_batches: number of batches of the evaluation.
    """

    trained: Trained
    network: TracedNetwork
    is_open: bool
    cases: Sequence[Case]
    source: Samples
    limit_batches: int

    def evaluate(self, session: Any) -> Mapping[str, float]:
        """Returns loss and metrics of a network in onnxruntime."""
        trained = self.trained
        loader = build_loader(
            trained.description, self.source, trained.signature, trained.device, limit_batches=self.limit_batches
        )
        return with_onnx(trained, self.network, session, self.is_open).evaluator.measure(loader)


def compress(folder: Path, wanted: Compression, subject: Subject) -> Tuple[Dict[str, Any], List[Case]]:
    """Replaces the network of an exported folder by a quantized one.

    Args:
        folder: exported folder with the network in float32.
        wanted: settings of the quantization.
        subject: the network and the data for the comparison.

    Returns:
        The comparison for export.json, and the cases of the proof with the outputs of the quantized network in
        onnxruntime on this machine.

    Raises:
        ConfigError: the network cannot be quantized in this way.
        WorseThanAllowed: the metric is worse by more than `wanted.max_loss`.
    """
    if (folder / standalone.WEIGHTS).exists():
        raise ConfigError(f"quantize={wanted.form}: networks above 2 GB are exported in float32 alone. Leave it out.")
    work = folder / "float32"
    work.mkdir()
    try:
        before, after = work / standalone.MODEL, folder / standalone.MODEL
        after.rename(before)
        facts = _convert(before, after, wanted, subject)
        folders = {FLOAT32: str(work), wanted.form: str(folder)}
        sessions = {name: standalone.load_session(path) for name, path in folders.items()}
        metric = _compare_metric(subject, wanted, sessions)
        inputs = subject.cases[0][0]
        report = {
            "form": wanted.form, **facts, "metric": metric,
            "errors": standalone.errors_of(sessions[wanted.form], subject.cases),
            "bytes": {FLOAT32: before.stat().st_size, wanted.form: after.stat().st_size},
            "latency": measure_latency(folders, inputs, BATCHES if subject.is_open else BATCHES[:1]),
            "processor": describe_processor(),
        }  # fmt: skip
        return report, [(given, standalone.run(sessions[wanted.form], given)) for given, _ in subject.cases]
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _convert(before: Path, after: Path, wanted: Compression, subject: Subject) -> Dict[str, Any]:
    import onnx

    if wanted.form == "int8":
        way = quantize.quantize_int8(before, after, calibration_samples(subject, wanted))
        count, total = quantize.count_in_int8(onnx.load(after))
        facts = {"way": way.name, "reason": way.reason, "in_int8": f"{count} of {total} heavy operators"}
        if way.name == quantize.STATIC:
            facts["calibration_samples"] = str(min(wanted.samples, len(wanted.train)))
        return facts
    model = onnx.load(before)
    quantize.store_weights(model, wanted.form)
    quantize.save_plain(model, after)
    return {"way": "weights", "reason": "computed in float32"}


def calibration_samples(subject: Subject, wanted: Compression) -> Iterator[Dict[str, np.ndarray]]:
    """Yields samples, evenly spaced over the training split, as inputs of the exported network, a few at a time."""
    trained, source = subject.trained, wanted.train
    count = min(wanted.samples, len(source))
    chosen = take(source, np.linspace(0, len(source) - 1, count).astype(int).tolist())
    loader = build_loader(trained.description, chosen, trained.signature, trained.device, prefetch=0)
    objective = trained.strategy.objective
    state = RecurrentState(objective.state_shapes, objective.network)
    step = ROWS if subject.is_open else 1
    for batch in loader.epoch():
        arrays = subject.network.enter([one.asnumpy() for one in state.enter(batch).inputs])
        for row in range(0, min(len(one) for one in arrays.values()), step):
            yield {name: array[row : row + step] for name, array in arrays.items()}


def _compare_metric(subject: Subject, wanted: Compression, sessions: Mapping[str, Any]) -> Dict[str, Any]:
    values = {name: subject.evaluate(session) for name, session in sessions.items()}
    monitored = subject.trained.description.trainer.monitor.rpartition("/")[2]
    name = monitored if monitored in values[FLOAT32] else "loss"
    was, now = (float(values[form][name]) for form in (FLOAT32, wanted.form))
    sign = 1.0 if subject.trained.evaluator.direction(name) == "max" else -1.0
    lost = sign * (was - now)
    # Not `lost > allowed`, which is False for NaN: a metric that becomes NaN is worse.
    is_fine = lost <= wanted.max_loss * max(1.0, abs(was)) or (math.isnan(was) and math.isnan(now))
    if not is_fine:
        raise WorseThanAllowed(
            f"export: {name} is {was:.6g} in float32 and {now:.6g} in {wanted.form}: worse by {lost:.3g}, and "
            f"max_loss={wanted.max_loss:g} allows {wanted.max_loss * max(1.0, abs(was)):.3g}. Nothing was written. "
            "More calibration_samples, quantize=float16 or a larger max_loss may help; limit_batches sets how many "
            "samples are measured."
        )
    return {"name": name, FLOAT32: was, wanted.form: now, "max_loss": wanted.max_loss}


def measure_latency(
    folders: Mapping[str, str], inputs: Mapping[str, np.ndarray], batches: Sequence[int]
) -> List[Dict[str, Any]]:
    """Measures the median latency of each network in ms.

    Args:
        folders: name -> exported folder.
        inputs: inputs of one sample, (1, ...) each.
        batches: batch sizes to measure.
    """
    rows = []
    for threads in dict.fromkeys((1, usable_cores())):
        sessions = {name: standalone.load_session(folder, threads) for name, folder in folders.items()}
        for size in batches:
            given = {name: np.repeat(array[:1], size, axis=0) for name, array in inputs.items()}
            took = _in_turns(sessions, given)
            rows.append({"batch": size, "threads": threads, **{name: round(ms, 3) for name, ms in took.items()}})
    return rows


def _in_turns(sessions: Mapping[str, Any], inputs: Dict[str, np.ndarray]) -> Dict[str, float]:
    # Alternating calls: other load on the machine then slows all networks down alike. The first calls are not timed,
    # since they allocate memory.
    taken: Dict[str, List[float]] = {name: [] for name in sessions}
    for session in sessions.values():
        standalone.run(session, inputs)
    began = time.perf_counter()
    for number in range(ROUNDS):
        if number >= LEAST_ROUNDS and time.perf_counter() - began > SECONDS * len(sessions):
            break
        for name, session in sessions.items():
            start = time.perf_counter()
            standalone.run(session, inputs)
            taken[name].append(1000 * (time.perf_counter() - start))
    return {name: statistics.median(values) for name, values in taken.items()}


def describe_processor() -> str:
    """Returns the name of the processor, and whether it has VNNI (int8 dot products in one instruction)."""
    flags = cpu_flags()
    if {"avx512_vnni", "avx_vnni"} & flags:
        return f"{processor_name()}, with VNNI"
    widest = next((name for name in ("avx512f", "avx2") if name in flags), "")
    return f"{processor_name()}, {widest + ', ' if widest else ''}without VNNI"
