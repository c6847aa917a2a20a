"""Optional libraries, which only some data and commands need: versions, and messages with the install command."""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.metadata
import shlex
import sys
from typing import Any, Dict, Iterable, Iterator, Sequence, Tuple, Type

from mxtrain.errors import DataError, MxtrainError

EXTRAS: Dict[str, Tuple[str, ...]] = {
    "dicom": ("pydicom>=2.4.4,<4",),
    "gymnasium": ("gymnasium>=0.29,<2", "pygame-ce>=2.1.3"),
    "parquet": ("pyarrow>=14.0.1,<19",),
    "tiff": ("tifffile>=2024.8.30,<2027", "imagecodecs>=2024.1"),
    "s3": ("s3fs>=2025.3,<2027", "aiobotocore>=2.20,<4"),
    "sentencepiece": ("sentencepiece>=0.2.1,<0.2.2",),
    "tune": ("optuna>=4.4,<6", "cmaes>=0.12,<1"),
    "gp": ("torch>=2", "scipy>=1.9"),
    "export": ("onnx>=1.16", "onnxruntime>=1.19", "ml_dtypes<0.6"),
    "safetensors": ("safetensors>=0.4.5,<1",),
    "torch": ("torch>=2", "onnx2torch>=1.5.15,<2"),
    "serve": (
        "fastapi>=0.115,<1",
        "uvicorn>=0.39,<1",
        "httptools>=0.6.3,<1",
        "prometheus-client>=0.20,<1",
        "onnxruntime>=1.19",
    ),
    "ray": ("ray>=2.51,<3",),
    "tokenizers": ("tokenizers>=0.19",),
    "babel": ("babel>=2.14",),
    "num2words": ("num2words>=0.5.13,!=0.5.15",),
    "onnxruntime": ("onnxruntime>=1.19",),
}
"""Packages of pyproject.toml that not everyone needs: extras, or dependencies that a manual installation may lack.
Messages name them one by one, since mxtrain is not published: `pip install mxtrain[...]` would fail, or install an
unrelated package."""


NUMPY = "numpy==1.23.5"
"""The version that MXNet 1.9.1 works with. Each command that installs packages names it; otherwise pip would replace it
by NumPy 2."""


def install_command(*packages: str) -> str:
    """Returns the command that installs packages, or an extra, into this environment."""
    requirements = [requirement for package in packages for requirement in EXTRAS.get(package, (package,))]
    # Exported folders have a copy of this module, and run without MXNet.
    pinned = [] if importlib.machinery.PathFinder.find_spec("mxnet") is None else [NUMPY]
    return shlex.join([sys.executable, "-m", "pip", "install", *requirements, *pinned])


def require_library(name: str, package: str, needed_by: str, error_class: Type[MxtrainError] = DataError) -> Any:
    """Imports a library, and returns it.

    Args:
        name: name of the module.
        package: package for pip, or one of `EXTRAS`.
        needed_by: setting or feature that needs it, for the message.
        error_class: class of the error.

    Raises:
        DataError, or `error_class`: it is not installed, or its version is not one of `EXTRAS`.
    """
    # Versions first: a library of the wrong version may import well and fail in the middle of a run.
    check_versions(EXTRAS.get(package, ()), needed_by, error_class)
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise error_class(missing_message(error, package, needed_by)) from error


def missing_message(error: ImportError, package: str, needed_by: str) -> str:
    """Returns the message for a library that cannot be imported, with the command that installs it.

    Args:
        error: error of the import.
        package: package for pip, or one of `EXTRAS`.
        needed_by: setting or feature that needs it.
    """
    needed = (error.name or "").partition(".")[0] or package
    return f"{needed_by} needs the package {needed} ({error}): {install_command(package)}"


def check_versions(requirements: Sequence[str], needed_by: str, error_class: Type[MxtrainError] = DataError) -> None:
    """Rejects packages that are installed in another version than mxtrain is tested with.

    Packages that are not installed are left to their import, which may not need all of them.

    Args:
        requirements: packages with their versions, as in `EXTRAS`.
        needed_by: setting or feature that needs them, for the message.
        error_class: class of the error.

    Raises:
        DataError, or `error_class`: there is such a package; the message has both versions and the command.
    """
    for text, name, installed in wrong_versions(requirements):
        raise error_class(f"{needed_by} needs {text}, and {name} {installed} is installed: {install_command(text)}")


def wrong_versions(requirements: Iterable[str]) -> Iterator[Tuple[str, str, str]]:
    """Yields the requirement, name and installed version of each package that is installed in another version.

    Args:
        requirements: packages with their versions, as in `EXTRAS`.
    """
    try:
        from packaging.requirements import Requirement
    except ImportError:  # in an exported folder, which has a copy of this module: nothing is compared there
        return
    for text in requirements:
        requirement = Requirement(text)
        try:
            installed = importlib.metadata.version(requirement.name)
        except importlib.metadata.PackageNotFoundError:
            continue
        if not requirement.specifier.contains(installed, prereleases=True):
            yield text, requirement.name, installed
