"""Replay bundles: the step that failed, as a folder that `mxtrain replay` can repeat anywhere.

    replay/step-00000012/bundle.json    step, seed, worker, description, and name, type and shape of each array
                         arrays.npz     inputs and targets of the batch, and the weights before the step

Weights of more than `MAX_WEIGHT_BYTES` are left out, and the last checkpoint is named instead. Nothing is pickled, and
files that are larger than their limits, or differ from bundle.json, are refused.

A process that was killed cannot write its batch. Its supervisor then writes a bundle without arrays, a `StepReference`:
`replay` reads the batch again from the dataset, because it is a function of seed, epoch and number of the batch.
"""

from __future__ import annotations

import io
import os
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Mapping, Optional, Sequence, Union

import numpy as np

from mxtrain.checkpoint import refuse_links
from mxtrain.config.moved import with_current_paths
from mxtrain.errors import ConfigError, reason_of
from mxtrain.files.durable import replace_file, write_json_atomic
from mxtrain.files.json_form import problems_of
from mxtrain.files.json_text import read_json
from mxtrain.files.regular_files import open_regular

if TYPE_CHECKING:
    from mxtrain.types import Batch
    from mxtrain.types.annotations import JsonForm, JsonObject

FOLDER = "replay"
BUNDLE, ARRAYS = "bundle.json", "arrays.npz"
FORMAT, VERSION = "mxtrain-replay", 1
MAX_WEIGHT_BYTES = 1 << 27
MAX_BATCH_BYTES = 1 << 26
"""Limit of a kept batch; of a larger one the first samples are kept."""
MAX_ARRAYS_BYTES = MAX_WEIGHT_BYTES + MAX_BATCH_BYTES + (1 << 24)
MAX_JSON_BYTES = 1 << 24
MAX_NUM_ARRAYS = 100_000
_REFERENCE_FORM: Dict[str, JsonForm] = {
    "format": str,
    "version": int,
    "reason": str,
    "step": int,
    "rank": int,
    "workers": int,
}
_FORM: JsonForm = {
    **_REFERENCE_FORM,
    "epoch": int,
    "samples": int,
    "batch_size": int,
    "run": {"description": dict, "input": dict, "*": object},
    "checkpoint?": str,
    "arrays": {"*": {"dtype": str, "shape": [int]}},
}
# Booleans, integers and floats. An array of objects would contain a pickle.
_KINDS = "biuf"


@dataclass(frozen=True)
class ReplayBundle:
    """A step to repeat.

    Attributes:
        path: folder of the bundle.
        facts: the content of bundle.json.
        inputs: inputs of the network.
        targets: targets of the loss.
        weights: structural name -> weight before the step; empty if only a checkpoint is named.
    """

    path: Path
    facts: JsonObject
    inputs: Sequence[np.ndarray]
    targets: Sequence[np.ndarray]
    weights: Mapping[str, np.ndarray]

    @property
    def checkpoint(self) -> Optional[Path]:
        """Returns the checkpoint that has weights of an earlier step; None if the bundle has the weights."""
        name = self.facts.get("checkpoint")
        return None if name is None or self.weights else self.path.parent.parent / "checkpoints" / name


@dataclass(frozen=True)
class StepReference:
    """A step of a run whose batch and weights are read again from the dataset and a checkpoint.

    Attributes:
        run_dir: directory of the run.
        step: number of the step, from 1.
        rank: rank of the worker.
        workers: number of workers.
        reason: what happened.
    """

    run_dir: Path
    step: int
    rank: int = 0
    workers: int = 1
    reason: str = ""

    def write(self) -> Path:
        """Writes the reference into the run directory, unless the worker itself has written the step; returns the
        folder.

        Raises:
            OSError, RunDirectoryError: it cannot be written.
        """
        folder = _prepare_folder(self.run_dir, self.step, self.rank)
        if not (folder / BUNDLE).exists():
            facts: JsonObject = {
                "format": FORMAT,
                "version": VERSION,
                "reason": self.reason,
                "step": self.step,
                "rank": self.rank,
                "workers": self.workers,
            }
            write_json_atomic(folder / BUNDLE, facts, durable=False)
        return folder


class ReplayWriter:
    """Writes bundles into the run directory.

    Args:
        run_dir: directory of the run.
        run: description and signature, as checkpoints contain them.
        rank: rank of this worker.
        workers: number of workers.
    """

    def __init__(self, run_dir: Path, run: JsonObject, rank: int, workers: int):
        self._run_dir, self._run, self._rank, self._workers = run_dir, run, rank, workers

    def write(
        self,
        batch: Batch,
        step: int,
        epoch: int,
        reason: str,
        weights: Callable[[], Mapping[str, np.ndarray]],
        num_weight_bytes: int,
        checkpoint: Optional[str],
    ) -> Path:
        """Writes the bundle of a step, and returns its folder.

        Args:
            batch: this worker's share of the batch.
            step: number of the step, from 1.
            epoch: number of the epoch, from 0.
            reason: what happened.
            weights: returns host copies of the weights; called only if they are small enough.
            num_weight_bytes: size of the weights.
            checkpoint: folder name of the last checkpoint.

        Raises:
            OSError, RunDirectoryError: the bundle cannot be written.
        """
        size = max(batch.size, 1)
        per_sample = sum(_num_bytes(array) for array in (*batch.inputs, *batch.targets)) / size
        samples = min(batch.size, max(int(MAX_BATCH_BYTES / max(per_sample, 1)), 1))
        arrays: Dict[str, np.ndarray] = {}
        for kind, held in (("input", batch.inputs), ("target", batch.targets)):
            arrays.update({f"{kind}:{n}": array[:samples].asnumpy() for n, array in enumerate(held)})
        if num_weight_bytes <= MAX_WEIGHT_BYTES:
            arrays.update({f"weight:{name}": array for name, array in weights().items()})
        facts: JsonObject = {
            "format": FORMAT,
            "version": VERSION,
            "reason": reason,
            "step": step,
            "epoch": epoch,
            "rank": self._rank,
            "workers": self._workers,
            "samples": samples,
            "batch_size": batch.size,
            "run": dict(self._run),
            "checkpoint": checkpoint,
            "arrays": {name: {"dtype": array.dtype.str, "shape": list(array.shape)} for name, array in arrays.items()},
        }
        folder = _prepare_folder(self._run_dir, step, self._rank)
        stream = io.BytesIO()
        np.savez(stream, **arrays)
        # The arrays come first: a folder with bundle.json is then complete.
        replace_file(folder / ARRAYS, stream.getbuffer(), durable=False)
        write_json_atomic(folder / BUNDLE, facts, durable=False)
        return folder

    def write_reference(self, step: int, reason: str) -> Path:
        """Writes a step without its batch and weights, and returns its folder.

        Raises:
            OSError, RunDirectoryError: it cannot be written.
        """
        return StepReference(self._run_dir, step, self._rank, self._workers, reason).write()


def _prepare_folder(run_dir: Path, step: int, rank: int) -> Path:
    """Creates the folder of a step."""
    name = f"{FOLDER}/step-{step:08d}{f'-worker-{rank}' if rank else ''}"
    refuse_links(run_dir, (FOLDER, name))
    folder = run_dir / name
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _num_bytes(array: Any) -> int:
    return int(array.size) * int(np.dtype(array.dtype).itemsize)


def read_bundle(path: Path) -> Union[ReplayBundle, StepReference]:
    """Reads a bundle, or the reference to a step that stands in its folder.

    Raises:
        ConfigError: it is missing, damaged, too large or of another version.
    """
    try:
        facts = with_current_paths(read_json(path / BUNDLE, at_most=MAX_JSON_BYTES))
    except FileNotFoundError:
        raise ConfigError(
            f"{path} is neither a run directory nor a replay bundle: there is no {BUNDLE}. replay takes a run, or a "
            f"folder below its {FOLDER}/."
        ) from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path / BUNDLE} cannot be read: {reason_of(error)}.") from None
    is_reference = isinstance(facts, dict) and "arrays" not in facts
    for problem in problems_of(facts, _REFERENCE_FORM if is_reference else _FORM):
        raise ConfigError(f"{path / BUNDLE} is no replay bundle: {problem}.")
    if (facts["format"], facts["version"]) != (FORMAT, VERSION):
        raise ConfigError(f"{path / BUNDLE} is of another version ({facts['version']}); this one reads {VERSION}.")
    if is_reference:
        if facts["step"] < 1 or not 0 <= facts["rank"] < facts["workers"]:
            raise ConfigError(f"{path / BUNDLE} is no replay bundle: its numbers of step and worker are impossible.")
        run_dir = Path(os.path.abspath(path)).parent.parent
        return StepReference(run_dir, facts["step"], facts["rank"], facts["workers"], facts["reason"])
    name = facts.get("checkpoint")
    # The name becomes a part of a path, and must not lead out of the run directory.
    if name is not None and (name in ("", ".", "..") or "/" in name or "\0" in name):
        raise ConfigError(f"{path / BUNDLE}: 'checkpoint' is no name of a folder.")
    arrays = _read_arrays(path / ARRAYS, facts["arrays"])
    by_kind = {
        kind: {key.partition(":")[2]: array for key, array in arrays.items() if key.startswith(f"{kind}:")}
        for kind in ("input", "target", "weight")
    }
    inputs, targets = ([by_kind[kind][n] for n in _numbers(by_kind[kind])] for kind in ("input", "target"))
    if not inputs or len(inputs) < len(by_kind["input"]) or len(targets) < len(by_kind["target"]):
        raise ConfigError(f"{path / ARRAYS} does not contain all inputs and targets.")
    return ReplayBundle(path, facts, inputs, targets, by_kind["weight"])


def _numbers(by_number: Mapping[str, object]) -> List[str]:
    """Returns the names 0, 1, ... up to the first that is missing."""
    names = [str(number) for number in range(len(by_number))]
    return names if all(name in by_number for name in names) else []


def _read_arrays(path: Path, declared: Mapping[str, JsonObject]) -> Dict[str, np.ndarray]:
    """Reads an npz file, which must hold exactly the arrays in `declared`, without compression."""
    arrays: Dict[str, np.ndarray] = {}
    try:
        if len(declared) > MAX_NUM_ARRAYS:
            raise ValueError(f"there are more than {MAX_NUM_ARRAYS:,} arrays")
        with open_regular(path, at_most=MAX_ARRAYS_BYTES) as (stream, size), zipfile.ZipFile(stream) as archive:
            names = [info.filename for info in archive.infolist()]
            if sorted(names) != sorted(f"{name}.npy" for name in declared):
                raise ValueError(f"its arrays are not those that {BUNDLE} lists")
            # Compressed members could have any size, and members that overlap could, too.
            if sum(info.file_size for info in archive.infolist()) > size or any(
                info.compress_type != zipfile.ZIP_STORED for info in archive.infolist()
            ):
                raise ValueError("it is compressed or damaged")
            for name, form in declared.items():
                arrays[name] = _read_array(archive.read(f"{name}.npy"), name, form)
    except FileNotFoundError:
        raise ConfigError(f"{path}: there is no such file.") from None
    except (OSError, ValueError, zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError) as error:
        raise ConfigError(f"{path} cannot be read: {reason_of(error)}.") from None
    return arrays


def _read_array(content: bytes, name: str, form: JsonObject) -> np.ndarray:
    stream = io.BytesIO(content)
    if np.lib.format.read_magic(stream) != (1, 0):  # its header has at most 64 KiB
        raise ValueError(f"'{name}' is no array of format 1.0")
    shape, is_fortran, dtype = np.lib.format.read_array_header_1_0(stream)
    if dtype.kind not in _KINDS or dtype.str != form["dtype"] or list(shape) != form["shape"]:
        raise ValueError(f"'{name}' is not the array that {BUNDLE} describes")
    # Python integers cannot overflow, as np.prod would for a forged shape.
    count = 1
    for length in shape:
        count *= length
    if count < 0 or count * dtype.itemsize != len(content) - stream.tell():
        raise ValueError(f"'{name}' is cut off")
    array = np.frombuffer(content, dtype, offset=stream.tell())
    return array.reshape(shape[::-1]).T if is_fortran else array.reshape(shape)
