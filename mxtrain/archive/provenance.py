"""Writes meta.json: everything needed to reproduce a run."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import platform
import subprocess
import sys
import threading
import time
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Dict, Iterator, Mapping, Optional, Sequence, Tuple

import mxtrain
from mxtrain import __version__
from mxtrain.archive.run_files import META_FILE
from mxtrain.config.groups import Description
from mxtrain.files.durable import write_json_atomic
from mxtrain.runtime.cores import processor_name

if TYPE_CHECKING:
    from mxtrain.runtime.apply import RuntimeReport
    from mxtrain.types.annotations import Config, Json

PACKAGES = ("mxnet", "gluoncv", "hydra-core", "omegaconf", "numpy", "tensorboardX", "pydantic", "scikit-learn")

DESCRIPTION = "description"
"""Key of the configuration in meta.json."""
PACKAGE_FOLDER = Path(mxtrain.__file__).resolve().parent
OWN_FOLDERS = (PACKAGE_FOLDER.name, "conf")
"""Folders of a checkout of mxtrain whose changes can change a run."""
MAX_DIFF_BYTES = 1 << 16
"""The part of a git diff that meta.json keeps; the hash covers all of it."""
GIT_TIMEOUT_S = 5
WORKING_FOLDER = "working_folder"
"""Folder where the run was started; relative paths are resolved against it. Checkpoints do not contain it, so that they
can be moved."""


def write_meta(
    run_dir: Path, description: Description, runtime_report: RuntimeReport, facts: Optional[Mapping[str, Json]] = None
) -> None:
    """Writes meta.json into the run directory.

    Args:
        run_dir: directory of the run.
        description: description of the run.
        runtime_report: environment of the process.
        facts: facts that are known only once the run is built, such as the fingerprint of its data.
    """
    write_json_atomic(run_dir / META_FILE, {**collect_meta(description, runtime_report), **(facts or {})})


def collect_meta(description: Description, runtime_report: RuntimeReport) -> Dict[str, Json]:
    """Collects argv, working folder, configuration and its hash, versions, code, host, devices and runtime."""
    from mxtrain.engine.backend import has_asked_for_operators, operators_in_use

    # Sorted keys: the hash must not depend on the order in which the configuration was composed.
    canonical = json.dumps(description.config, sort_keys=True, default=str)
    return {
        "argv": sys.argv,
        WORKING_FOLDER: os.getcwd(),
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "config_sha256": hashlib.sha256(canonical.encode()).hexdigest(),
        "packages": {"mxtrain": __version__, **{name: package_version(name) for name in PACKAGES}},
        "python": platform.python_version(),
        "git": git_state(os.getcwd()),
        "mxtrain_git": own_git_state(str(PACKAGE_FOLDER)),
        "code": own_code(description.config),
        "host": {"name": platform.node(), "system": platform.platform(), "processor": processor_name()},
        "devices": [str(device) for stages in description.parallel.resolve_devices() for device in stages],
        "precision": {"dtype": description.amp.dtype, "amx": runtime_report.amx},
        "own_operators": operators_in_use(),
        "asks_for_operators": has_asked_for_operators(),
        "metric_signatures": description.metric_signatures,
        "lr_scaling": description.rates.facts,
        "runtime": {
            setting.variable: setting.value for setting in runtime_report.settings if setting.source != "unset"
        },
        "runtime_reasons": runtime_report.lines(),
        # Runs without checkpoints must be reproducible, and overrides mean something else once a default has changed.
        DESCRIPTION: description.config,
    }


def package_version(name: str) -> Optional[str]:
    """Returns the version of an installed package, or None. CUDA wheels of mxnet have other names (mxnet-cu112)."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        installed = metadata.distributions() if name == "mxnet" else ()  # reading all of them takes half a second
        return next((d.version for d in installed if str(d.metadata["Name"]).startswith("mxnet-cu")), None)


def own_code(config: Config) -> Dict[str, Json]:
    """Returns the hash of the file of each class in a configuration that is not mxtrain's own, by its import path.
    None: the module is not imported, or has no file."""
    hashes: Dict[str, Json] = {}
    for target in sorted(set(_targets(config))):
        module = sys.modules.get(target.rpartition(".")[0])
        if target.partition(".")[0] == mxtrain.__name__:
            continue
        try:
            hashes[target] = _hash_of_file(str(getattr(module, "__file__", "")))
        except OSError:
            hashes[target] = None
    return hashes


@functools.cache
def _hash_of_file(path: str) -> str:
    """Returns the hash of a file at the first call in this process: a module is imported once, too."""
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def _targets(node: object) -> Iterator[str]:
    if isinstance(node, Mapping):
        for name, value in node.items():
            if name == "_target_" and isinstance(value, str):
                yield value
            else:
                yield from _targets(value)
    elif isinstance(node, (list, tuple)):
        for value in node:
            yield from _targets(value)


# Git.

GIT = ("git", "-c", "core.fsmonitor=false")
"""Command that runs no program that the repository's configuration names, since the current folder may be untrusted."""


def git_state(folder: str, *paths: str) -> Optional[Mapping[str, Json]]:
    """Returns the commit of a checkout and how it differs from it; None outside of a repository or without git.

    Args:
        folder: folder in the checkout.
        paths: the only folders that are compared, relative to the top of the checkout; by default all.

    Returns:
        `commit`, `dirty`, and of the difference `diff_sha256`, `diff_bytes` and `diff`, its first `MAX_DIFF_BYTES`
        bytes. Files that git does not track are no part of it. The hash is None if git did not finish in time.
    """
    commit = _git_output(folder, "rev-parse", "HEAD")
    if commit is None:
        return None
    pathspecs = ["--", *(f":(top){path}" for path in paths)] if paths else []
    # Both options keep git from running programs that the repository's configuration may name.
    sha256, size, first = _read_diff([*GIT, "-C", folder, "diff", "--no-ext-diff", "--no-textconv", "HEAD", *pathspecs])
    return {
        "commit": commit.strip(),
        "dirty": size > 0,
        "diff_sha256": sha256,
        "diff_bytes": size,
        "diff": first.decode("utf-8", "replace"),
    }


def _git_output(folder: str, *arguments: str) -> Optional[str]:
    try:
        result = subprocess.run(
            [*GIT, "-C", folder, *arguments], capture_output=True, text=True, timeout=GIT_TIMEOUT_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return result.stdout


@functools.cache
def own_git_state(package: str) -> Optional[Mapping[str, Json]]:
    """Returns the state of mxtrain's checkout at the first call in this process: that of the code that it has imported.

    Args:
        package: folder of the package. An installed one may lie in a checkout of something else.
    """
    is_tracked = _git_output(package, "ls-files", "--error-unmatch", "__init__.py") is not None
    return git_state(package, *OWN_FOLDERS) if is_tracked else None


def _read_diff(command: Sequence[str]) -> Tuple[Optional[str], int, bytes]:
    """Returns hash, size and the beginning of what a command prints, without keeping the rest in memory."""
    digest, size, first = hashlib.sha256(), 0, b""
    try:
        # A diff may have gigabytes, e.g. of data under version control, so it is read in pieces.
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    except OSError:
        return None, 0, b""
    with process:
        assert process.stdout is not None
        timer = threading.Timer(GIT_TIMEOUT_S, process.kill)
        timer.start()
        try:
            for chunk in iter(lambda: process.stdout.read(1 << 16), b""):  # type: ignore[union-attr]
                digest.update(chunk)
                size += len(chunk)
                first += chunk[: MAX_DIFF_BYTES - len(first)]
        finally:
            timer.cancel()
            timer.join()
    return (digest.hexdigest() if process.returncode == 0 else None), size, first
