"""Replaces an exported network by a quantized one, and compares metric, latency and size of both on this machine."""

from __future__ import annotations

import math
import shutil
import statistics
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterator, List, Literal, Mapping, Sequence, Tuple

import numpy as np

from mxtrain.checkpoint.ranking import ROUNDING
from mxtrain.errors import ConfigError, WorseThanAllowed
from mxtrain.exporting import quantize, standalone
from mxtrain.exporting.compression_report import FLOAT32
from mxtrain.exporting.proof import with_onnx
from mxtrain.parallel.recurrent_state import RecurrentState
from mxtrain.runtime.amx import cpu_flags
from mxtrain.runtime.cores import processor_name, usable_cores
from mxtrain.training.loaders import build_loader, take

if TYPE_CHECKING:
    from mxtrain.data.spec import Samples
    from mxtrain.exporting.network import TracedNetwork
    from mxtrain.exporting.parts import WrittenPart
    from mxtrain.exporting.proof import Case
    from mxtrain.training.trained import Trained

Stage = Callable[[str], None]
Format = Literal["none", "int8", "float16", "bfloat16"]
# Errors between onnxruntime's integer kernels and the same file without graph optimisation are up to 1.6e-2.
TOLERANCES = {"int8": 0.05, "float16": standalone.MAX_ERROR, "bfloat16": standalone.MAX_ERROR}
"""Largest relative error of a repeated proof. With int8, a different last bit on another processor can move an
activation to the next of 256 levels. Weights of 16 bits are used in float32 arithmetic."""
BATCHES = (1, 32)
MAX_ROUNDS, MIN_ROUNDS, SECONDS = 50, 2, 1.0
"""Largest and smallest number of timed calls of each network, and the time after which no further calls start."""
CALIBRATION_BATCH = 8
"""Samples of a calibration batch. All activations of a batch are in memory at once."""


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
        is_open: True if the batch dimension is open; False if it is 1.
        cases: cases of the proof.
        source: samples for the evaluation.
        limit_batches: number of batches of the evaluation.
        parts: further networks of the folder by name.
    """

    trained: Trained
    network: TracedNetwork
    is_open: bool
    cases: Sequence[Case]
    source: Samples
    limit_batches: int
    parts: Mapping[str, WrittenPart] = field(default_factory=dict)

    @property
    def all_cases(self) -> Dict[str, Sequence[Case]]:
        """Cases of each network of the folder; "" is the whole network."""
        return {"": self.cases, **{name: part.cases for name, part in self.parts.items()}}

    def evaluate(self, sessions: Mapping[str, Any]) -> Mapping[str, float]:
        """Returns loss and metrics of the networks of a folder in onnxruntime.

        Args:
            sessions: name -> session of each network; "" is the whole network.
        """
        trained = self.trained
        loader = build_loader(
            trained.description, self.source, trained.signature, trained.device, limit_batches=self.limit_batches
        )
        parts = PartSessions({"parts": {name: part.signature for name, part in self.parts.items()}}, sessions)
        onnx = with_onnx(trained, self.network, sessions[""], self.is_open, parts if self.parts else None)
        return onnx.evaluator.measure(loader)


@dataclass
class PartSessions:
    """Networks of a folder that is being written, as an `ExportedFolder`.

    Attributes:
        signature: inputs and outputs of each part, under "parts".
        sessions: name -> session of each network.
    """

    signature: Dict[str, Any]
    sessions: Mapping[str, Any]

    def run(self, inputs: Dict[str, np.ndarray], part: str = "") -> Dict[str, np.ndarray]:
        """See `ExportedFolder`."""
        return standalone.run(self.sessions[part], inputs)

    def read(self, name: str) -> bytes:
        """See `ExportedFolder`; the other files are not written yet."""
        raise AssertionError(f"{name} is not written yet")

    def read_arrays(self, name: str) -> Dict[str, np.ndarray]:
        """See `read`."""
        raise AssertionError(f"{name} is not written yet")


def compress(
    folder: Path, settings: Compression, subject: Subject, stage: Stage = lambda what: None
) -> Tuple[Dict[str, Any], Dict[str, List[Case]]]:
    """Replaces all networks of an exported folder by quantized ones.

    Args:
        folder: exported folder with the networks in float32.
        settings: settings of the quantization.
        subject: the network and the data for the comparison.
        stage: called with a description of each part of the work before it starts.

    Returns:
        The comparison for export.json, and the cases of the proof of each network with the outputs of the quantized one
        in onnxruntime on this machine.

    Raises:
        ConfigError: a network cannot be quantized in this way.
        WorseThanAllowed: the metric is worse by more than `settings.max_loss`.
    """
    all_cases = subject.all_cases
    files = {name: file_of(name) for name in all_cases}
    if any((folder / standalone.weights_of(file)).exists() for file in files.values()):
        raise ConfigError(f"quantize={settings.form}: networks above 2 GB are exported in float32 alone. Leave it out.")
    work = folder / "float32"
    work.mkdir()
    try:
        facts: Dict[str, Any] = {"parts": {}}
        for name, file in files.items():
            calibrates = not name and settings.form == "int8"
            stage(f"{'calibration: ' * calibrates}making {file} {settings.form}")
            # Both forms have the same file names, since readers of a folder know no others: float32 moves into a
            # subfolder.
            (folder / file).rename(work / file)
            if name:
                facts["parts"][name] = _convert_part(work / file, folder / file, settings)
            else:
                facts.update(_convert(work / file, folder / file, settings, subject))
        folders = {FLOAT32: str(work), settings.form: str(folder)}
        sessions = {
            form: {name: standalone.load_session(path, name=file) for name, file in files.items()}
            for form, path in folders.items()
        }
        quantized = sessions[settings.form]
        # The proof holds the smaller file's own outputs: against MXNet's, the tolerance would have to be as large as
        # the loss of int8, and would notice no damage.
        proven = {name: _outputs(name, quantized[name], cases, settings.form) for name, cases in all_cases.items()}
        stage("measuring the metric of both")
        metric = _compare_metric(subject, settings, sessions)
        inputs = subject.cases[0][0]
        sizes = {
            form: {file: (Path(path) / file).stat().st_size for file in files.values()}
            for form, path in folders.items()
        }
        stage("timing")
        report = {
            "form": settings.form,
            **facts,
            "metric": metric,
            "errors": {
                f"{name}.{key}" if name else key: error
                for name, cases in all_cases.items()
                for key, error in standalone.errors_of(quantized[name], cases).items()
            },
            "bytes": {form: sum(by_file.values()) for form, by_file in sizes.items()},
            "files": sizes,
            "latency": measure_latency(folders, inputs, BATCHES if subject.is_open else BATCHES[:1]),
            "processor": describe_processor(),
        }
        return report, proven
    finally:
        shutil.rmtree(work, ignore_errors=True)


def file_of(name: str) -> str:
    """Returns the file of a network of the folder; "" is the whole network."""
    return f"{name}.onnx" if name else standalone.MODEL


def _outputs(name: str, session: Any, cases: Sequence[Case], form: Format) -> List[Case]:
    """Returns the cases with the outputs of a quantized network.

    Raises:
        ConfigError: it fails, or has outputs of other names or shapes.
    """
    refused = f"quantize={form}: {file_of(name)}"
    advice = "quantize=float16 keeps the arithmetic of float32." if form == "int8" else "Leave it out."
    proven = []
    for inputs, expected in cases:
        try:
            found = standalone.run(session, inputs)
        except standalone.UnusableFolder as error:
            raise ConfigError(f"{refused} cannot be computed in this form: {error}. {advice}") from error
        shapes, expected_shapes = ({key: array.shape for key, array in one.items()} for one in (found, expected))
        if shapes != expected_shapes:
            wrong = next(key for key in {**expected_shapes, **shapes} if shapes.get(key) != expected_shapes.get(key))
            raise ConfigError(
                f"{refused} has another output in this form: {wrong} has the shape {shapes.get(wrong)}, "
                f"and {expected_shapes.get(wrong)} in float32. {advice}"
            )
        proven.append((inputs, found))
    return proven


def _convert(float32_file: Path, quantized_file: Path, settings: Compression, subject: Subject) -> Dict[str, Any]:
    if settings.form == "int8":
        way = quantize.quantize_int8(float32_file, quantized_file, calibration_samples(subject, settings))
        facts = {"way": way.name, "reason": way.reason, "in_int8": _count_in_int8(quantized_file)}
        if way.name == quantize.STATIC:
            facts["calibration_samples"] = str(min(settings.samples, len(settings.train)))
        return facts
    _store_weights(float32_file, quantized_file, settings.form)
    return {"way": "weights", "reason": "computed in float32"}


def _convert_part(float32_file: Path, quantized_file: Path, settings: Compression) -> Dict[str, str]:
    if settings.form == "int8":
        way = quantize.quantize_int8(float32_file, quantized_file, (), is_part=True)
        return {"way": way.name, "reason": way.reason, "in_int8": _count_in_int8(quantized_file)}
    _store_weights(float32_file, quantized_file, settings.form)
    return {"way": "weights", "reason": "computed in float32"}


def _count_in_int8(file: Path) -> str:
    import onnx

    count, total = quantize.count_in_int8(onnx.load(file))
    return f"{count} of {total} heavy operators"


def _store_weights(float32_file: Path, quantized_file: Path, form: Format) -> None:
    import onnx

    model = onnx.load(float32_file)
    quantize.store_weights(model, form)
    quantize.save_plain(model, quantized_file)


def calibration_samples(subject: Subject, settings: Compression) -> Iterator[Dict[str, np.ndarray]]:
    """Yields samples, evenly spaced over the training split, as inputs of the exported network, a few at a time."""
    trained, source = subject.trained, settings.train
    count = min(settings.samples, len(source))
    # A split may be sorted by class: its first samples would give the activation ranges of one class.
    samples = take(source, np.linspace(0, len(source) - 1, count).astype(int).tolist())
    loader = build_loader(trained.description, samples, trained.signature, trained.device, prefetch=0)
    objective = trained.strategy.objective
    state = RecurrentState(objective.state_shapes, objective.network)
    step = CALIBRATION_BATCH if subject.is_open else 1
    for batch in loader.epoch():
        arrays = subject.network.enter([value.asnumpy() for value in state.enter(batch).inputs])
        for row in range(0, min(map(len, arrays.values())), step):
            yield {name: array[row : row + step] for name, array in arrays.items()}


def _compare_metric(
    subject: Subject, settings: Compression, sessions: Mapping[str, Mapping[str, Any]]
) -> Dict[str, Any]:
    values = {form: subject.evaluate(networks) for form, networks in sessions.items()}
    monitored = subject.trained.description.trainer.monitor.rpartition("/")[2]
    direction_of = subject.trained.evaluator.direction
    # A metric without a known direction cannot be worse or better, so the loss decides in its place.
    name = monitored if monitored in values[FLOAT32] and direction_of(monitored) != "unknown" else "loss"
    before, after = (float(values[form][name]) for form in (FLOAT32, settings.form))
    sign = 1.0 if direction_of(name) == "max" else -1.0
    lost = sign * (before - after)
    # Not `lost > allowed`, which is False for NaN: a metric that becomes NaN is worse.
    # 0.80 - 0.79 is 0.010000000000000009: what is allowed must not depend on the rounding of the difference.
    allowed = settings.max_loss * max(1.0, abs(before))
    is_fine = lost <= allowed + ROUNDING * abs(before) or (math.isnan(before) and math.isnan(after))
    if not is_fine:
        raise WorseThanAllowed(
            f"export: {name} is {before:.6g} in float32 and {after:.6g} in {settings.form}: worse by {lost:.3g}, and "
            f"max_loss={settings.max_loss:g} allows {allowed:.3g}. Nothing was "
            "written. More calibration_samples, quantize=float16 or a larger max_loss may help; limit_batches sets "
            "how many samples are measured."
        )
    return {"name": name, FLOAT32: before, settings.form: after, "max_loss": settings.max_loss}


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
    # On a machine with one core both numbers are equal, and are measured once.
    for threads in dict.fromkeys((1, usable_cores())):
        sessions = {name: standalone.load_session(folder, threads) for name, folder in folders.items()}
        for size in batches:
            batch = {name: np.repeat(array[:1], size, axis=0) for name, array in inputs.items()}
            latencies = _in_turns(sessions, batch)
            rows.append({"batch": size, "threads": threads, **{name: round(ms, 3) for name, ms in latencies.items()}})
    return rows


def _in_turns(sessions: Mapping[str, Any], inputs: Dict[str, np.ndarray]) -> Dict[str, float]:
    # Alternating calls: other load on the machine then slows all networks down alike. The first calls are not timed,
    # since they allocate memory.
    latencies: Dict[str, List[float]] = {name: [] for name in sessions}
    for session in sessions.values():
        standalone.run(session, inputs)
    began = time.perf_counter()
    for number in range(MAX_ROUNDS):
        if number >= MIN_ROUNDS and time.perf_counter() - began > SECONDS * len(sessions):
            break
        for name, session in sessions.items():
            start = time.perf_counter()
            standalone.run(session, inputs)
            latencies[name].append(1000 * (time.perf_counter() - start))
    return {name: statistics.median(values) for name, values in latencies.items()}


def describe_processor() -> str:
    """Returns the name of the processor, and whether it has VNNI (int8 dot products in one instruction)."""
    flags = cpu_flags()
    if {"avx512_vnni", "avx_vnni"} & flags:
        return f"{processor_name()}, with VNNI"
    widest = next((name for name in ("avx512f", "avx2") if name in flags), "")
    return f"{processor_name()}, {widest + ', ' if widest else ''}without VNNI"
