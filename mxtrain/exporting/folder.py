"""Writes an exported network as a self-contained folder, and checks such folders."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import Any, Dict, List, Mapping, Sequence, Tuple

import numpy as np

import mxtrain
from mxtrain.config.libraries import missing_message, require_library
from mxtrain.errors import DataError, LoaderError
from mxtrain.exporting import standalone
from mxtrain.exporting.compression_report import remarks_of, table_of
from mxtrain.exporting.standalone import UnusableFolder
from mxtrain.files.durable import encode_json, replace_file
from mxtrain.files.new_folder import unwritable
from mxtrain.files.regular_files import read_regular

PREDICT, CARD = "predict.py", "README.md"
MAX_INSIDE = standalone.MAX_MODEL_BYTES
"""Bytes of a network from which on its weights are in a file of their own."""
MAX_SEARCHED = 1000
"""Folders of a level in which `exports_below` searches."""
MIN_EXTERNAL_SIZE = 1024
"""Bytes of a weight that is in that file."""


def write_model(folder: Path, model: Any, name: str = standalone.MODEL) -> None:
    """Writes a network; weights of more than 2 GB into a file of their own, as the format demands.

    Raises:
        DataError: the files cannot be written, for example because the disk is full.
    """
    import onnx

    try:
        if model.ByteSize() < MAX_INSIDE:
            replace_file(folder / name, model.SerializeToString())
            return
        onnx.save_model(
            model,
            str(folder / name),
            save_as_external_data=True,
            all_tensors_to_one_file=True,
            location=standalone.weights_of(name),
            size_threshold=MIN_EXTERNAL_SIZE,
        )
    except OSError as error:
        raise unwritable(folder, error) from error


def write_proof(folder: Path, cases: Mapping[str, Any]) -> None:
    """Writes the inputs and MXNet's outputs of each case.

    Args:
        folder: the folder to write to.
        cases: name of a graph -> its cases; "" is the whole network.

    Raises:
        DataError: the file cannot be written, for example because the disk is full.
    """
    arrays = {
        f"{f'{part}:' if part else ''}{number}/{kind}/{name}": np.ascontiguousarray(array)
        for part, part_cases in cases.items()
        for number, case in enumerate(part_cases)
        for kind, arrays_by_name in zip(("input", "output"), case)
        for name, array in arrays_by_name.items()
    }
    _write_arrays(folder, standalone.PROOF, arrays)


def write_proof_files(folder: Path, cases: Sequence[Tuple[str, bytes, Mapping[str, np.ndarray]]]) -> None:
    """Writes the files of the proof.

    Args:
        folder: the folder to write to.
        cases: name and content of each file, and the inputs of the network for it, without the batch.

    Raises:
        DataError: the file cannot be written, for example because the disk is full.
    """
    arrays: Dict[str, np.ndarray] = {}
    for number, (name, content, inputs) in enumerate(cases):
        arrays[f"{number}/file/{name}"] = np.frombuffer(content, np.uint8)
        arrays.update((f"{number}/input/{key}", array) for key, array in inputs.items())
    if arrays:
        _write_arrays(folder, standalone.PROOF_FILES, arrays)


def _write_arrays(folder: Path, name: str, arrays: Mapping[str, np.ndarray]) -> None:
    try:
        with (folder / name).open("xb") as file:
            np.savez_compressed(file, **arrays)
    except OSError as error:
        raise unwritable(folder, error) from error


def check_arrays(files: Mapping[str, Mapping[str, np.ndarray]]) -> None:
    """Rejects arrays that `predict.py` would not read.

    Args:
        files: file name -> arrays by name.

    Raises:
        DataError: the arrays of a file are too large.
    """
    for name, arrays in files.items():
        size = sum(array.nbytes for array in arrays.values())
        if size > standalone.MAX_ARRAY_BYTES:
            raise DataError(
                f"export: {name} would hold {size:,} bytes, and predict.py reads files of at most "
                f"{standalone.MAX_ARRAY_BYTES:,} bytes. Train with fewer columns."
            )


def write_texts(
    folder: Path,
    signature: Dict[str, Any],
    report: Dict[str, Any],
    files: Mapping[str, bytes],
    arrays: Mapping[str, Mapping[str, np.ndarray]],
    modules: Mapping[str, bytes],
) -> None:
    """Writes the signature, the report, the model card and the program that predicts.

    Args:
        folder: the folder to write to.
        signature, report: content of signature.json and export.json.
        files: name -> content of further files, such as a tokenizer; a model card or program among them replaces ours.
        arrays: file name -> arrays by name that samples are read with, see `check_arrays`.
        modules: file name -> source of the Python modules that read samples.

    Raises:
        DataError: a file cannot be written, for example because the disk is full.
    """
    try:
        replace_file(folder / standalone.SIGNATURE, encode_json(signature, 2) + b"\n")
        replace_file(folder / standalone.REPORT, encode_json(report, 2) + b"\n")
        # The folder's program and `export check` are the same file, so there is one implementation of the check.
        own = {CARD: model_card(signature, report).encode(), PREDICT: read_regular(standalone.__file__)}
        for name, content in {**own, **files}.items():
            replace_file(folder / name, content, mode=0o755 if name == PREDICT else 0o666)
        for name, named in arrays.items():
            _write_arrays(folder, name, {key: np.ascontiguousarray(array) for key, array in named.items()})
        if modules:
            reading = folder / standalone.READING
            reading.mkdir()
            for name, content in {"__init__.py": b"", **modules}.items():
                replace_file(reading / name, content)
    except OSError as error:
        raise unwritable(folder, error) from error


def model_card(signature: Dict[str, Any], report: Dict[str, Any]) -> str:
    """Returns README.md: network, inputs, outputs, errors and metrics of the export."""
    lines = [
        f"# {report['model']} for {signature['task'] or 'a task of its own'}",
        "",
        f"Exported by mxtrain {report['versions']['mxtrain']} from step {report['step']} of a run on "
        f"{report['dataset']}.",
        "",
        "| input | type | shape |",
        "| --- | --- | --- |",
        *(
            f"| {spec['name']} | {spec['dtype']} | {' x '.join(map(str, spec['shape']))} |"
            for spec in signature["inputs"]
        ),
        *([f"\n{signature['fixed']}."] if signature.get("fixed") else []),
        "",
        "| output | relative error against MXNet |",
        "| --- | --- |",
        *(f"| {name} | {error:.1e} |" for name, error in report["errors"].items()),
        "",
        f"| metric ({report['evaluated']}) | MXNet | onnxruntime |",
        "| --- | --- | --- |",
        *(
            f"| {name} | {values['mxnet']:.6g} | {values['onnxruntime']:.6g} |"
            for name, values in report["metrics"].items()
        ),
        "",
        "```",
        f"pip install onnxruntime numpy {_reader_packages(signature)}".rstrip(),
        "python predict.py --check    # repeats the proof",
        "python predict.py FILE...",
        "```",
        "",
        standalone.describe_input(signature),
        "",
        "`signature.json` says how samples become inputs. The largest error is of the samples in `proof.npz`, relative "
        "to the largest number of the output.",
        "",
    ]
    if "compression" in report:
        titles, *rows = table_of(report["compression"])
        lines += [
            f"## {report['compression']['form']}",
            "",
            *remarks_of(report["compression"]),
            "The errors above are those of float32; the proof holds outputs of this file.",
            "",
            f"| {' | '.join(titles)} |",
            "| --- " * len(titles) + "|",
            *(f"| {' | '.join(row)} |" for row in rows),
            "",
        ]
    return "\n".join(lines)


def _reader_packages(signature: Dict[str, Any]) -> str:
    """Returns the packages that predict.py needs to read samples of the task, for pip."""
    files = [fact["file"] for fact in signature.get("facts", {}).values() if isinstance(fact, dict) and "file" in fact]
    if files:
        return " ".join(sorted({"sentencepiece" if name.endswith(".model") else "tokenizers" for name in files}))
    return "pillow" if signature.get("samples") == "images" else ""


def check_folder(folder: str) -> Dict[str, float]:
    """Repeats the proof of an exported folder, without MXNet; returns the relative error of each output, and of the
    inputs of each file of the proof, which mxtrain's own module reads.

    Args:
        folder: path of the folder, which may be untrusted: nothing in it is executed.

    Raises:
        DataError: the folder is not an export, its network computes other outputs, or a package is missing.
    """
    if not os.path.lexists(os.path.join(folder, standalone.SIGNATURE)):
        raise DataError(_why_no_export(folder))
    if all(os.path.lexists(os.path.join(folder, name)) for name in ("model.py", "model.safetensors")):
        # Its network is Python code, which is not executed here.
        raise DataError(
            f"{folder} is for PyTorch, and its network is code. If you trust it: python "
            f"{os.path.join(folder, PREDICT)} --check"
        )
    require_library("onnxruntime", "onnxruntime", "export check")
    try:
        # mxtrain's own reader is called, not its copy in the folder, which a stranger may have changed.
        return standalone.check(folder, _own_reader)
    except (UnusableFolder, LoaderError) as error:
        raise DataError(f"{error}.") from error
    except ImportError as error:
        raise DataError(missing_message(error, error.name or "", "export check")) from error


def _own_reader(signature: Mapping[str, Any]) -> Any:
    """Returns the module of mxtrain of which a folder has a copy; None if there is none."""
    name, root = str(signature.get("reader") or ""), Path(mxtrain.__file__).parent
    # The name may be a stranger's: it must not lead to another module of mxtrain.
    if not name.isidentifier() or not name.startswith("exported_"):
        return None
    found = sorted(root.rglob(f"{name}.py"))
    return importlib.import_module(".".join(found[0].relative_to(root.parent).with_suffix("").parts)) if found else None


def _why_no_export(folder: str) -> str:
    """Says that a path is no exported folder, and names one below it."""
    if not os.path.isdir(folder):
        return f"{folder} is no folder." if os.path.lexists(folder) else f"There is no folder {folder}."
    said = f"{folder} is no exported folder: it has no {standalone.SIGNATURE}."
    below = exports_below(folder, depth=3)  # for=kserve puts the network into repository/NAME/1
    if below:
        return f"{said} Did you mean {below[0]}?"
    return f"{said} `mxtrain export RUN` makes one."


def exports_below(folder: str, depth: int) -> List[str]:
    """Returns exported folders below a folder, level by level, e.g. RUN/export or models/digits/1.

    Args:
        folder: path of the folder; folders in it that cannot be read, or that are hidden, are skipped.
        depth: number of levels to search.
    """
    found, level = [], [folder]
    for _ in range(depth):
        paths = (os.path.join(parent, name) for parent in level for name in _visible(parent)[:MAX_SEARCHED])
        level = sorted(path for path in paths if os.path.isdir(path))[:MAX_SEARCHED]
        found += [
            path
            for path in level
            if all(os.path.lexists(os.path.join(path, name)) for name in (standalone.MODEL, standalone.SIGNATURE))
        ]
    return found


def _visible(folder: str) -> List[str]:
    try:
        return sorted(name for name in os.listdir(folder) if not name.startswith("."))
    except OSError:
        return []
