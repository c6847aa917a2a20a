"""Writes meta.json: everything needed to reproduce a run."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Mapping, Optional

from mxtrain import __version__
from mxtrain.description.groups import Description
from mxtrain.files.durable import write_json_atomic
from mxtrain.runtime.cores import processor_name

if TYPE_CHECKING:
    from mxtrain.annotations import Json
    from mxtrain.runtime.apply import RuntimeReport

PACKAGES = ("mxnet", "gluoncv", "hydra-core", "omegaconf", "numpy", "tensorboardX", "pydantic", "scikit-learn")

META = "meta.json"
WORKING_FOLDER = "working_folder"
"""Folder where the run was started; relative paths are resolved against it. Checkpoints do not contain it, so that they
can be moved."""


def write_meta(
    run_dir: Path, description: Description, runtime_report: RuntimeReport,
    data: Optional[Mapping[str, Mapping[str, Json]]] = None,
) -> None:  # fmt: skip
    """Writes meta.json into the run directory.

    Args:
        run_dir: the run directory.
        description: description of the run.
        runtime_report: the runtime settings in effect.
        data: number and fingerprint of the samples of each split (`data.fingerprint`).
    """
    write_json_atomic(run_dir / META, {**collect_meta(description, runtime_report), "data": dict(data or {})})


def collect_meta(description: Description, runtime_report: RuntimeReport) -> Mapping[str, Json]:
    """Collects argv, working folder, hash of the configuration, versions, git state, host, devices and runtime."""
    from mxtrain.engine.backend import operators_in_use

    canonical = json.dumps(description.config, sort_keys=True, default=str)
    return {
        "argv": sys.argv,
        WORKING_FOLDER: os.getcwd(),
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "config_sha256": hashlib.sha256(canonical.encode()).hexdigest(),
        "packages": {"mxtrain": __version__, **{name: package_version(name) for name in PACKAGES}},
        "python": platform.python_version(),
        "git": git_state(),
        "host": {"name": platform.node(), "system": platform.platform(), "processor": processor_name()},
        "devices": [str(device) for stages in description.parallel.place() for device in stages],
        "precision": {"dtype": description.amp.dtype, "amx": runtime_report.amx},
        "own_operators": operators_in_use(),
        "metric_signatures": description.metric_signatures,
        "lr_scaling": description.rates.facts,
        "runtime": {
            setting.variable: setting.value for setting in runtime_report.settings if setting.source != "unset"
        },  # fmt: skip
        "runtime_reasons": runtime_report.lines(),
    }


GIT = ("git", "-c", "core.fsmonitor=false")
"""Without a program that the repository's own configuration may name: the current folder may be somebody's."""


def package_version(name: str) -> Optional[str]:
    """Returns the version of an installed package, or None. CUDA wheels of mxnet have other names (mxnet-cu112)."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        installed = metadata.distributions() if name == "mxnet" else ()  # reading all of them takes half a second
        return next((d.version for d in installed if str(d.metadata["Name"]).startswith("mxnet-cu")), None)


def git_state() -> Optional[Mapping[str, Json]]:
    """Returns commit, whether the work tree differs from it, and a hash of the difference, for the current folder.

    Returns None outside of a repository or without git.
    """

    def ask(*words: str) -> Optional[str]:
        try:
            done = subprocess.run([*GIT, *words], capture_output=True, text=True, timeout=5, check=True)
        except (OSError, subprocess.SubprocessError):
            return None
        return done.stdout

    commit = ask("rev-parse", "HEAD")
    if commit is None:
        return None
    # Both options keep git from running programs that the repository's configuration may name.
    diff = ask("diff", "--no-ext-diff", "--no-textconv", "HEAD") or ""
    return {"commit": commit.strip(), "dirty": bool(diff), "diff_sha256": hashlib.sha256(diff.encode()).hexdigest()}
