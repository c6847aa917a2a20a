"""Installation into fresh environments: the built wheel with an extra, and the steps of examples/container."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from ctypes.util import find_library
from pathlib import Path
from typing import Dict

import mxnet
import pytest
from docker_files import copy_context, steps
from operator_files import copy_operators

from mxtrain.runtime.given_mxnet import CONTAINER_VARIABLE, KNOWN_RELEASES

ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / "examples/container"
PIP_CACHE = os.environ.get("PIP_CACHE_DIR") or str(
    Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "pip")
)
DOCKERFILES = (EXAMPLE / "Dockerfile", EXAMPLE / "Dockerfile.ngc")


def clean_environ(**added: str) -> Dict[str, str]:
    """Returns the environment without what the test's own one sets: nothing of the checkout may be found."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTHON", "MXTRAIN", "VIRTUAL_ENV", "PYTEST", "OMP"))
    }
    return {**kept, **added}


def check(*command: object, cwd: Path, environ: Dict[str, str]) -> str:
    words = [str(word) for word in command]
    done = subprocess.run(words, cwd=cwd, env=environ, capture_output=True, text=True, timeout=900, check=False)
    if "Could not find a version" in done.stderr or "No route" in done.stderr:
        pytest.skip("there is no package index here")
    assert done.returncode == 0, f"{words}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    return done.stdout


def train_and_examine(
    environment: Path, folder: Path, environ: Dict[str, str], *overrides: str
) -> Dict[str, Dict[str, str]]:
    """Trains, evaluates and loads a run in an empty folder; returns the findings of `doctor` by name."""
    folder.mkdir()
    programs = environment / "bin"
    check(programs / "mxtrain", "debug=fast", "hydra.run.dir=run", *overrides, cwd=folder, environ=environ)
    check(programs / "python", "-m", "mxtrain", "eval", "run", cwd=folder, environ=environ)
    where = "import mxtrain; print(mxtrain.__file__, mxtrain.load('run').metrics)"
    said = check(programs / "python", "-c", where, cwd=folder, environ=environ)
    assert said.startswith(f"{environment}/lib/") and "accuracy" in said
    report = json.loads(check(programs / "mxtrain", "doctor", "--json", cwd=folder, environ=environ))
    assert report["usable"] is True
    return {finding["what"]: finding for finding in report["findings"]}


def run_steps(
    dockerfile: Path, source: Path, environment: Path, environ: Dict[str, str], has_packages: bool = False
) -> None:
    """Runs the RUN lines of a Dockerfile, but for those of apt-get, with another folder for each of its own.

    With `has_packages`, pip finds the packages of the test's own environment, except MXNet, and checks their versions.
    """
    python = environment / "bin/python"
    for step in steps(dockerfile, "RUN"):
        if step.startswith("apt-get "):
            continue
        assert step.startswith(("pip install ", "python3 -m venv ", "/opt/mxtrain/bin/python -m pip install "))
        # pip of the container, which an environment with its packages sees.
        pip = f"{sys.executable} -m pip --python {python} install --no-compile "
        command = re.sub(r"^(/opt/mxtrain/bin/python -m )?pip install ", pip, step).replace("--no-cache-dir ", "")
        command = re.sub("^python3 ", f"{sys.executable} ", command)
        command = command.replace("/src", str(source)).replace("/opt/mxtrain", str(environment))
        if has_packages:
            command = command.replace("--ignore-installed ", "")
        check("bash", "-c", command, cwd=source.parent, environ=environ)
        if has_packages and " -m venv " in step:
            link_packages(environment)


def link_packages(environment: Path) -> None:
    """Links the packages of the test's own environment into another one, except MXNet."""
    own, other = (
        Path(sysconfig.get_path("purelib", vars={"base": str(base), "platbase": str(base)}))
        for base in (sys.prefix, environment)
    )
    for path in own.iterdir():
        if path.suffix != ".pth" and not path.name.startswith(("mxnet", "mxtrain", "__pycache__")):
            (other / path.name).symlink_to(path)


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: path.name)
def test_container_steps_are_those_of_the_locks(dockerfile: Path) -> None:
    """Packages come from locks, with hashes; only the image for CPUs brings an MXNet."""
    text = dockerfile.read_text("utf-8")
    assert set(re.findall(r"^([A-Z]+) ", text, re.MULTILINE)) <= {
        "ARG", "FROM", "RUN", "COPY", "ENV", "WORKDIR", "ENTRYPOINT",
    }  # fmt: skip
    installs = [step for step in steps(dockerfile, "RUN") if " install " in step and "apt-get" not in step]
    *locked, own = installs
    assert own.endswith("--no-deps /src")
    files = [Path(name) for step in locked for name in re.findall(r"-r /src/(\S+)", step)]
    assert all("--require-hashes" in step for step in locked) and all((ROOT / file).is_file() for file in files)
    names = [file.name for file in files]
    brings_mxnet = dockerfile.suffix != ".ngc"
    assert names == ["build.txt", "base.txt", *(["mxnet-cpu.txt"] if brings_mxnet else [])]
    # The container has other versions of some of them.
    assert brings_mxnet or "--ignore-installed" in locked[1]


def test_container_page_names_these_files_and_releases() -> None:
    page = (EXAMPLE / "README.md").read_text("utf-8")
    for dockerfile in DOCKERFILES:
        (build,) = re.findall(rf"^docker build -f examples/container/{re.escape(dockerfile.name)} .*$", page, re.M)
        assert f"#   {build}\n" in dockerfile.read_text("utf-8")
    (release,) = re.findall(r"^ARG RELEASE=(.*)$", DOCKERFILES[1].read_text("utf-8"), re.M)
    assert steps(DOCKERFILES[1], "FROM") == ["nvcr.io/nvidia/mxnet:${RELEASE}-py3"]
    (other,) = re.findall(r"--build-arg RELEASE=(\S+)`", page)
    assert sorted((release, other)) == sorted(KNOWN_RELEASES)
    assert re.findall(r"^\| (.*?) \| not run \|$", page, re.M)[0] == "`docker build`, `docker run`"


@pytest.mark.zoo
def test_container_for_cpus_trains(tmp_path: Path) -> None:
    copy_context(ROOT, tmp_path / "src")
    environment = tmp_path / "environment"
    environ = clean_environ(XDG_CACHE_HOME=str(tmp_path / "cache"), PIP_CACHE_DIR=PIP_CACHE)
    check(sys.executable, "-m", "venv", "--without-pip", environment, cwd=tmp_path, environ=environ)
    run_steps(DOCKERFILES[0], tmp_path / "src", environment, environ)
    findings = train_and_examine(environment, tmp_path / "empty", environ)
    assert findings["MXNet package"]["value"] == "mxnet 1.9.1" and findings["numpy"]["value"] == "1.23.5"
    assert "container" not in findings


@pytest.mark.slow
def test_container_of_nvidia_keeps_the_given_mxnet(tmp_path: Path, compiled_operators: Path) -> None:
    """An MXNet for CPUs in the Python path stands in for that of the container: it is what is used, and nothing brings
    another. Its lack of CUDA is what `doctor` would report of a container whose MXNet was replaced. The packages of the
    locks are those of the test's own environment; `test_container_for_cpus_trains` installs them."""
    copy_context(ROOT, tmp_path / "src")
    (tmp_path / "given").mkdir()
    (tmp_path / "given/mxnet").symlink_to(Path(mxnet.__file__).parent)
    given = {"PYTHONPATH": str(tmp_path / "given"), CONTAINER_VARIABLE: KNOWN_RELEASES[0]}
    environment = tmp_path / "environment"
    environ = clean_environ(XDG_CACHE_HOME=str(tmp_path / "cache"), PIP_CACHE_DIR=PIP_CACHE, **given)
    (tmp_path / "cache/mxtrain").mkdir(parents=True, mode=0o700)
    copy_operators(compiled_operators, tmp_path / "cache/mxtrain")
    run_steps(DOCKERFILES[1], tmp_path / "src", environment, environ, has_packages=True)
    findings = train_and_examine(environment, tmp_path / "empty", environ)
    assert findings["MXNet package"]["value"].startswith(f"none: MXNet comes from {tmp_path}/given/mxnet,")
    assert findings["numpy"]["value"] == "1.23.5" and findings["container"]["state"] == "missing"
    assert f"container {KNOWN_RELEASES[0]}, but its MXNet was replaced" in findings["container"]["value"]


@pytest.mark.slow(60)
def test_wheel_with_its_extra_trains_in_a_fresh_environment(tmp_path: Path) -> None:
    pytest.importorskip("hatchling", reason="scripts/test installs it")
    if find_library("GL") is None:
        pytest.skip("opencv-python, which the wheel requires, needs libGL.so.1")
    environ = clean_environ(XDG_CACHE_HOME=str(tmp_path / "cache"), PIP_CACHE_DIR=PIP_CACHE)
    check(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path / "dist", cwd=ROOT, environ=environ)
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    environment = tmp_path / "environment"
    check(sys.executable, "-m", "venv", "--without-pip", environment, cwd=tmp_path, environ=environ)
    pip = (sys.executable, "-m", "pip", "--python", environment / "bin/python", "install", "--no-compile")
    check(*pip, "setuptools<81", "wheel", cwd=tmp_path, environ=environ)
    check(*pip, f"{wheel}[cpu]", cwd=tmp_path, environ=environ)
    # BERT computes with mxtrain's own operators, which are compiled from the files of the wheel.
    findings = train_and_examine(environment, tmp_path / "empty", environ, "model=bert")
    assert findings["MXNet package"]["value"] == "mxnet 1.9.1" and findings["numpy"]["value"] == "1.23.5"
    if shutil.which("g++"):
        assert findings["native operators"]["value"] == "compiled for this processor"
        assert list((tmp_path / "cache").rglob("*.so"))
