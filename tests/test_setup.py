"""scripts/train, scripts/test, the locks and the wheel: what a stranger meets first.

The real set-up downloads 0.3 GB and is what CI starts with; here the scripts run against environments that only look
complete.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import Callable

import pytest
from packaging.requirements import Requirement

from mxtrain.runtime import cuda_libraries

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[1]
LOCKS = sorted((ROOT / "requirements").glob("*.txt"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
VARIANTS = re.search(r'^mxtrain_variants="(.*)"$', (ROOT / "scripts/_env.sh").read_text(), re.M)[1].split()


def _locked(lock: Path) -> list[Requirement]:
    lines = [line for line in lock.read_text().splitlines() if line and not line.startswith((" ", "#"))]
    return [Requirement(line.rstrip(" \\")) for line in lines]


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.name)
def test_every_package_is_pinned_and_hashed_and_no_address_is_named(lock: Path) -> None:
    text = lock.read_text()
    for entry in re.split(r"\n(?=[A-Za-z0-9])", text)[1:]:
        assert re.match(r"[A-Za-z0-9._-]+==[^ ]+ ", entry) and "--hash=sha256:" in entry, entry
    assert not re.search(r"https?://|--(extra-)?index|--find-links|--trusted-host", text)


def test_the_base_lock_holds_no_mxnet_and_each_variant_exactly_one() -> None:
    assert [item.name for item in _locked(ROOT / "requirements/base.txt") if item.name.startswith("mxnet")] == []
    for variant in VARIANTS:
        names = [str(item.name) + str(item.specifier) for item in _locked(ROOT / f"requirements/mxnet-{variant}.txt")]
        package = "mxnet" if variant == "cpu" else f"mxnet-{variant}"
        libraries = ["mxtrain[cuda11]"] * (package in cuda_libraries.BUILDS)
        assert names == [f"{package}==1.9.1"] and names + libraries == PROJECT["optional-dependencies"][variant]


def test_nvidias_libraries_are_locked_in_the_versions_that_the_extra_allows() -> None:
    locked = {item.name: str(item.specifier).removeprefix("==") for item in _locked(ROOT / "requirements/cuda11.txt")}
    wanted = [Requirement(text) for text in PROJECT["optional-dependencies"]["cuda11"]]
    assert {item.name for item in wanted} == set(locked)
    assert all(item.specifier.contains(locked[item.name]) for item in wanted)
    folders = {library.folder for library in cuda_libraries.LIBRARIES}
    assert {f"nvidia-{folder.replace('_', '-')}-cu11" for folder in folders} == set(locked) - {"nvidia-ml-py"}


@pytest.mark.parametrize("python", ["3.9.18", "3.10.13", "3.11.7"])
def test_the_lock_serves_every_python_and_agrees_with_the_wheel(python: str) -> None:
    environment = {"python_version": python.rpartition(".")[0], "python_full_version": python, "sys_platform": "linux"}
    environment["platform_machine"] = "x86_64"
    chosen: dict[str, str] = {}
    for lock in ("base", "test", "torch"):
        for item in _locked(ROOT / f"requirements/{lock}.txt"):
            if item.marker is None or item.marker.evaluate(environment):
                version = str(item.specifier).removeprefix("==")
                assert chosen.setdefault(item.name.lower(), version) == version, f"{item.name} is locked twice"
    for wanted in map(Requirement, PROJECT["dependencies"]):
        # The lock takes the same module from the package that needs no libGL.
        name = {"opencv-python": "opencv-python-headless"}.get(wanted.name, wanted.name.lower().replace("_", "-"))
        assert wanted.specifier.contains(chosen[name], prereleases=True), f"{wanted} but {chosen[name]} is locked"
    for extra in ("torch", "safetensors"):
        for wanted in map(Requirement, PROJECT["optional-dependencies"][extra]):
            assert wanted.specifier.contains(chosen[wanted.name]), f"{wanted} but {chosen[wanted.name]} is locked"


def test_torch_layer_leaves_out_what_only_gpus_need() -> None:
    """PyPI has PyTorch for CUDA only, and these are a third of its size."""
    locked = {item.name for item in _locked(ROOT / "requirements/torch.txt")}
    left_out = {item.name for item in _locked(ROOT / "requirements/torch-overrides.in")}
    assert {"torch", "torchvision", "timm", "transformers", "safetensors", "onnx2torch", "onnxscript"} <= locked
    assert "triton" in left_out and not left_out & locked


def test_torch_layer_does_not_change_the_environment_of_others(checkout: Path) -> None:
    def hash_locks() -> str:
        command = ["bash", "-euc", 'source "$1/scripts/_env.sh"; _hash_locks', "-", str(checkout)]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    before = hash_locks()
    with (checkout / "requirements/torch.txt").open("a") as lock:
        lock.write("# changed\n")
    assert hash_locks() == before


@pytest.mark.slow
@pytest.mark.parametrize("ready", [True, False])
def test_torch_is_installed_from_its_lock_once(checkout: Path, tmp_path: Path, ready: bool) -> None:
    folder = _complete(checkout)
    path = _tools(tmp_path / "bin")
    for tool in ("rm", "sleep", "env", "mkdir", "cut"):
        (path / tool).unlink(missing_ok=True)
        (path / tool).symlink_to(shutil.which(tool))
    _program(folder / "bin/python", f'#!/bin/sh\nprintf "%s " "$@" >> "{tmp_path}/log"\n')
    if ready:
        assert _run(checkout, "torch", path=path).returncode == 0
        (tmp_path / "log").unlink()
    done = _run(checkout, "torch", path=path)
    assert done.returncode == 0, done.stderr
    if ready:
        assert "PyTorch is there" in done.stderr and not (tmp_path / "log").exists()
        with (checkout / "requirements/torch.txt").open("a") as lock:
            lock.write("# changed\n")
        assert "adding PyTorch" in _run(checkout, "torch", path=path).stderr
    else:
        log = (tmp_path / "log").read_text()
        assert "--require-hashes --no-deps" in log and f"-r {checkout}/requirements/torch.txt" in log
        assert "import torch, torchvision, timm" in log


def test_uv_is_locked_for_every_python() -> None:
    """It is fetched by the Python that is too new, so no marker may leave it out there."""
    assert [item.marker for item in _locked(ROOT / "requirements/uv.txt")] == [None]


def _tools(folder: Path, *without: str) -> Path:
    """A folder for PATH with what the scripts use, and no Python."""
    folder.mkdir()
    for tool in "bash uname cat sha256sum dirname sed head awk ln mv rm flock tail".split():
        if tool not in without:
            (folder / tool).symlink_to(shutil.which(tool))
    return folder


def _program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of what set-up reads, in a folder whose name has a space."""
    copy = tmp_path / "a checkout"
    for name in ("scripts", "requirements"):
        shutil.copytree(ROOT / name, copy / name)
    return copy


def _run(checkout: Path, *argv: str, path: Path, cwd: Path | None = None, **environ: str):
    clean = {name: value for name, value in os.environ.items() if not name.startswith("MXTRAIN_")}
    return subprocess.run(
        [str(checkout / "scripts" / argv[0]), *argv[1:]],
        env={**clean, "PATH": str(path), **environ},
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def _complete(checkout: Path, name: str = ".venv-cpu-py311-x") -> Path:
    """Make an environment that looks complete; its python prints where it is and what it is given."""
    bash = 'source "$1/scripts/_env.sh"; lock="$(_hash_locks)"; '
    bash += 'driver="$(_driver_mark)"; _stamp "$1/$2" base; _stamp "$1/$2" test; _link "$2"'
    _program(checkout / name / "bin/python", '#!/bin/sh\npwd\nprintf "%s\\n" "$@"\n')
    subprocess.run(["bash", "-euc", bash, "-", str(checkout), name], check=True)
    return checkout / name


@pytest.mark.slow
def test_a_second_call_starts_at_once_with_the_same_arguments_and_folder(checkout: Path, tmp_path: Path) -> None:
    _complete(checkout)
    path = _tools(tmp_path / "bin")
    times = []
    for _ in range(5):
        started = time.perf_counter()
        done = _run(checkout, "train", "a b", "optimizer.lr=0.1", "", path=path, cwd=tmp_path)
        times.append(time.perf_counter() - started)
        assert done.stdout.splitlines() == [str(tmp_path), "-m", "mxtrain", "a b", "optimizer.lr=0.1", ""], done.stderr
        assert done.stderr == ""
    assert min(times) < 0.5  # about 0.02 s on an idle machine; a Python start more would show


def test_scripts_train_and_tensorboard_pass_their_arguments(checkout: Path, tmp_path: Path) -> None:
    folder = _complete(checkout)
    path = _tools(tmp_path / "bin")
    done = _run(checkout, "tensorboard", path=path, cwd=tmp_path)
    assert done.stdout.splitlines() == [str(tmp_path), "-m", "tensorboard.main", "--logdir", "outputs"], done.stderr
    done = _run(checkout, "tensorboard", "--port", "6007", path=path)
    assert done.stdout.splitlines()[1:] == ["-m", "tensorboard.main", "--logdir", "outputs", "--port", "6007"]
    assert _run(checkout, "tensorboard", "--help", path=path).stdout.splitlines()[-1] == "--help"
    done = _run(checkout, "tensorboard", "--logdir", "a b", path=path)
    assert done.stdout.splitlines()[1:] == ["-m", "tensorboard.main", "--logdir", "a b"]
    _program(folder / "bin/python", '#!/bin/sh\nprintf %s "$MXTRAIN_STARTED_BY"\n')
    typed = subprocess.run(["./scripts/train"], cwd=checkout, env={"PATH": str(path)}, capture_output=True, text=True)
    assert typed.stdout == "./scripts/train"


FOREIGN = (
    "PIP_TARGET",
    "PIP_PREFIX",
    "PIP_USER",
    "PIP_REQUIRE_VIRTUALENV",
    "PYTHONPATH",
    "PYTHONOPTIMIZE",
    "PYTHONHOME",
)


@pytest.mark.slow
def test_user_variables_do_not_redirect_packages(checkout: Path, tmp_path: Path) -> None:
    """A Python that only tells what it sees takes the place of the one that makes and fills the environment."""
    path = _tools(tmp_path / "bin")
    for tool in ("mkdir", "cp", "chmod", "sleep", "mv"):
        with contextlib.suppress(FileExistsError):
            (path / tool).symlink_to(shutil.which(tool))
    names = " ".join(FOREIGN)
    fake = f"""#!/bin/bash
for name in {names}; do [[ -v "$name" ]] && echo "$1 $2 $name" >> "{tmp_path}/seen"; done
case "$*" in
  *fits*) echo fits ;;
  *purelib*) mkdir -p "{tmp_path}/site"; echo "{tmp_path}/site" ;;
  *version_info*) echo 311 ;;
  "-m venv "*) mkdir -p "${{@: -1}}/bin"; cp "$0" "${{@: -1}}/bin/python" ;;
  *mxtrain*) [[ "$*" == "-m mxtrain x" ]] && echo "$PYTHONPATH ${{PYTHONHOME-unset}}" ;;
esac
exit 0
"""
    _program(path / "python3.11", fake)
    values = {name: str(tmp_path / "elsewhere") for name in FOREIGN}
    done = _run(checkout, "train", "x", path=path, cwd=tmp_path, **values)
    seen = (tmp_path / "seen").read_text().splitlines() if (tmp_path / "seen").exists() else []
    assert {line.rpartition(" ")[0] for line in seen} <= {"-m mxtrain"}, (seen, done.stderr)
    assert done.stdout.splitlines()[-1:] == [f"{tmp_path / 'elsewhere'} unset"], (done.stdout, done.stderr)


@pytest.mark.parametrize("setting", ["global.target='/x'", "install.prefix='/x'", "global.user='true'"])
def test_pip_setting_that_redirects_packages_is_named(checkout: Path, tmp_path: Path, setting: str) -> None:
    path = _tools(tmp_path / "bin")
    for tool in ("mkdir", "cp", "chmod"):
        with contextlib.suppress(FileExistsError):
            (path / tool).symlink_to(shutil.which(tool))
    fake = f"""#!/bin/bash
case "$*" in
  *fits*) echo fits ;;
  *version_info*) echo 311 ;;
  "-m venv "*) mkdir -p "${{@: -1}}/bin"; cp "$0" "${{@: -1}}/bin/python" ;;
  *"pip config list"*) printf '%s\n' "global.index-url='https://target.example/prefix='" "{setting}" ;;
  *"pip install"*) echo installed >> "{tmp_path}/installed" ;;
esac
"""
    _program(path / "python3.11", fake)
    done = _run(checkout, "train", path=path)
    name = setting.partition("=")[0]
    assert done.returncode == 2 and not (tmp_path / "installed").exists()
    assert f"pip's configuration has {setting}," in done.stderr and f"pip config unset {name})" in done.stderr
    assert "PIP_CONFIG_FILE=/dev/null" in done.stderr


def test_read_only_checkout_is_reported(checkout: Path, tmp_path: Path) -> None:
    path = _tools(tmp_path / "bin")
    _program(path / "python3.11", '#!/bin/sh\ncase "$2" in *fits*) echo fits ;; *) echo 311 ;; esac\n')
    (checkout / ".venv-lock").mkdir()  # the superuser may write anywhere else
    done = _run(checkout, "train", path=path)
    assert done.returncode == 2 and "line " not in done.stderr, done.stderr
    assert "cannot be written, and the environment (about 1 GB) is made there" in done.stderr


@pytest.mark.slow
def test_the_test_script_runs_pytest_from_the_top(checkout: Path, tmp_path: Path) -> None:
    _complete(checkout)
    done = _run(checkout, "test", "-k", "x y", path=_tools(tmp_path / "bin"), cwd=tmp_path)
    quick, slow_too, zoo = (["-m", mark] for mark in ("not slow and not zoo", "not zoo", "zoo"))
    assert done.stdout.splitlines() == [str(checkout), "-m", "pytest", *quick, "-k", "x y"], done.stderr
    _program(tmp_path / "bin" / "nproc", "#!/bin/sh\necho 3\n")
    each = ["-n", "3", "--dist", "loadfile", "--no-loadscope-reorder", "--max-worker-restart=0"]
    for words, given in (
        (["-k", "x y"], [*each, *quick, "-k", "x y"]),
        (["tests/cli"], [*slow_too, "tests/cli"]),
        (["--all"], [*each, *slow_too]),
        (["--zoo", "-x"], [*each, *zoo, "-x"]),
        (["--all", "-n", "0"], [*slow_too, "-n", "0"]),
    ):
        done = _run(checkout, "test", *words, path=tmp_path / "bin", cwd=tmp_path)
        assert done.stdout.splitlines() == [str(checkout), "-m", "pytest", *given], done.stderr


@pytest.mark.parametrize("change", ["lock", "stamp", "moved", "test layer"])
def test_an_environment_that_does_not_fit_is_not_used(checkout: Path, tmp_path: Path, change: str) -> None:
    folder = _complete(checkout)
    command = "train"
    if change == "lock":
        with (checkout / "requirements/base.txt").open("a") as lock:
            lock.write("# changed\n")
    elif change == "stamp":
        (folder / "mxtrain-ready-base").unlink()
    elif change == "moved":
        checkout = checkout.rename(tmp_path / "moved")
    else:
        (folder / "mxtrain-ready-test").unlink()
        command = "test"
    done = _run(checkout, command, path=_tools(tmp_path / "bin"))
    assert done.returncode == 2 and "Python 3.9, 3.10 or 3.11" in done.stderr  # it looked for one to build with


def test_unsupported_system_is_reported_in_one_sentence(checkout: Path, tmp_path: Path) -> None:
    path = _tools(tmp_path / "bin", "uname")
    _program(path / "uname", '#!/bin/sh\n[ "$1" = -s ] && echo Darwin || echo arm64\n')
    done = _run(checkout, "train", path=path)
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1
    assert "Linux on x86-64 only, and this is Darwin on arm64" in done.stderr


def test_a_python_that_is_too_new_is_named_and_uv_offered(checkout: Path, tmp_path: Path) -> None:
    path = _tools(tmp_path / "bin")
    _program(path / "python3", "#!/bin/sh\necho version 3.13\n")
    _program(path / "python3.11", "#!/bin/sh\necho shim: python3.11 is not installed >&2\nexit 127\n")
    done = _run(checkout, "train", path=path)
    assert done.returncode == 2
    assert "found: 3.13" in done.stderr and "--with-uv" in done.stderr and "uv python install 3.11" in done.stderr


def test_a_python_without_venv_gets_the_remedy(checkout: Path, tmp_path: Path) -> None:
    path = _tools(tmp_path / "bin")
    _program(path / "python3", "#!/bin/sh\necho no-venv 3.11\n")
    done = _run(checkout, "train", path=path)
    assert done.returncode == 2 and "apt install python3-venv" in done.stderr


@pytest.mark.parametrize(
    "environ, words",
    [
        ({"MXTRAIN_MXNET": "cu118"}, "cu118 is not known.*mxnet-cu118 and later have never been published"),
        ({"MXTRAIN_PYTHON": "no-such-python"}, "MXTRAIN_PYTHON=no-such-python is not a program"),
    ],
)
def test_wrong_choices_are_refused(checkout: Path, tmp_path: Path, environ: dict[str, str], words: str) -> None:
    done = _run(checkout, "train", path=_tools(tmp_path / "bin"), **environ)
    assert done.returncode == 2 and re.search(words, done.stderr)


@pytest.mark.parametrize(
    "driver, variant",
    [
        ("12.4", "cu117"),
        ("13.0", "cu117"),
        ("11.7", "cu117"),
        ("11.6", "cu116"),
        ("11.1", "cu110"),
        ("10.2", "cu102"),
        ("10.1", "cpu"),
        ("", "cpu"),
    ],
)
def test_the_newest_mxnet_that_the_driver_supports_is_taken(tmp_path: Path, driver: str, variant: str) -> None:
    path = _tools(tmp_path / "bin")
    line = f"echo '| NVIDIA-SMI 550.54   Driver Version: 550.54   CUDA Version: {driver}     |'" if driver else "exit 9"
    _program(path / "nvidia-smi", f"#!/bin/sh\n{line}\n")
    bash = f'source "{ROOT}/scripts/_env.sh"; _driver_mark() {{ printf there; }}; _choose_variant'
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", bash], env={"PATH": str(path)}, capture_output=True, text=True, check=True
    )
    assert done.stdout == variant


@pytest.mark.parametrize(
    "capabilities, variant, said",
    [
        (["8.6"], "cu117", ""),
        (["9.0"], "cpu", "can't run on this machine's GPUs: H100 (compute capability 9.0). Taking the CPU wheel"),
        (["12.0", "10.0"], "cpu", "1.9.1+sm90"),
        (["8.9", "9.0"], "cu117", "Hide them with CUDA_VISIBLE_DEVICES"),
    ],
)
def test_gpus_that_no_published_wheel_has_code_for_get_the_cpu_wheel(
    tmp_path: Path, capabilities: list[str], variant: str, said: str
) -> None:
    path = _tools(tmp_path / "bin")
    listed = "\n".join(f"{capability}, H100" for capability in capabilities)
    answer = f"case \"$1\" in --query-gpu=*) echo '{listed}';; *) echo 'CUDA Version: 12.4 ';; esac"
    _program(path / "nvidia-smi", f"#!/bin/sh\n{answer}\n")
    bash = f'source "{ROOT}/scripts/_env.sh"; _driver_mark() {{ printf there; }}; _choose_variant'
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", bash], env={"PATH": str(path)}, capture_output=True, text=True, check=True
    )
    assert done.stdout == variant and said in done.stderr and bool(said) == bool(done.stderr)


@pytest.mark.slow
def test_long_setup_shows_its_progress(tmp_path: Path) -> None:
    path = _tools(tmp_path / "bin")
    (path / "sleep").symlink_to(shutil.which("sleep"))
    bash = f'source "{ROOT}/scripts/_env.sh"; _with_progress 1 "$1" bash -c "$2" && echo done'
    work = "echo '[ 12%] Building CXX a.o'; echo ' [ 43%] Building CXX b.o'; sleep 2.2; exit "
    command = ["bash", "-euo", "pipefail", "-c", bash, "-", str(tmp_path / "log")]
    good = subprocess.run([*command, work + "0"], env={"PATH": str(path)}, capture_output=True, text=True, check=True)
    assert re.search(r"^mxtrain:   \d+ s, compiled 43%$", good.stderr, re.M) and good.stdout == "done\n"
    pip = "echo 'Collecting numpy==1.23.5'; echo '  Downloading numpy-1.23.5.whl (17 MB)'; sleep 2.2"
    good = subprocess.run([*command, pip], env={"PATH": str(path)}, capture_output=True, text=True, check=True)
    assert re.search(r"^mxtrain:   \d+ s, downloading numpy-1.23.5.whl$", good.stderr, re.M)
    bad = subprocess.run([*command, work + "3"], env={"PATH": str(path)}, capture_output=True, text=True, check=False)
    assert bad.returncode == 1 and "Building CXX b.o" in bad.stderr.splitlines()[-1]


def test_older_python_is_found_behind_a_broken_shim(tmp_path: Path) -> None:
    path = _tools(tmp_path / "bin")
    _program(path / "python3.11", "#!/bin/sh\nexit 127\n")
    _program(tmp_path / "other/python3.11", "#!/bin/sh\necho fits\n")
    bash = f'source "{ROOT}/scripts/_env.sh"; _find_python'
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", bash],
        env={"PATH": f"{path}:{tmp_path / 'other'}"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == str(tmp_path / "other/python3.11")


@pytest.mark.slow
def test_the_wheel_carries_conf_and_the_console_script(tmp_path: Path) -> None:
    pytest.importorskip("hatchling", reason="scripts/test installs it")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        scripts = archive.read(next(name for name in names if name.endswith("entry_points.txt"))).decode()
        metadata = archive.read(next(name for name in names if name.endswith("METADATA"))).decode()
    wanted = {f"mxtrain/{path.relative_to(ROOT)}" for path in (ROOT / "conf").rglob("*.yaml")}
    assert wanted and wanted <= names and "mxtrain/py.typed" in names
    # The wheel has all files of the package that are not Python: C++ sources to compile, and the data of default runs.
    tracked = subprocess.run(
        ["git", "ls-files", "mxtrain"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    others = {name for name in tracked.splitlines() if not name.endswith(".py")}
    assert "mxtrain/engine/native/operators.cc" in others and others <= names
    assert "mxtrain = mxtrain.cli:main" in scripts
    lines = [line for line in metadata.splitlines() if line.startswith("Requires-Dist")]
    required = [Requirement(line.partition(": ")[2]) for line in lines]
    assert not [item for item in required if item.name.startswith("mxnet") and "extra" not in str(item.marker)]


def write_release(folder: Path, change: Callable[[], object] = lambda: None) -> None:
    """Writes a checkout of version 1.2.3 with the script; `change` is called before the commit."""
    for name in ("scripts", "mxtrain"):
        (folder / name).mkdir()
    for name in ("release", "_env.sh"):
        shutil.copy(ROOT / "scripts" / name, folder / "scripts" / name)
    (folder / "mxtrain/__init__.py").write_text('__version__ = "1.2.3"\n')
    (folder / "CHANGELOG.md").write_text("# Changes\n\n## Unreleased\n\n## 1.2.3\n\n- First.\n\n## 1.2.2\n")
    change()
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@example.org"]
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "first"], ["tag", "v1.2.2"]):
        subprocess.run([*git, *command], cwd=folder, check=True)


@pytest.mark.parametrize(
    "file, old, new, words",
    [
        ("CHANGELOG.md", "## Unreleased\n", "## Unreleased\n\n", "version 1.2.3 can be released"),
        ("CHANGELOG.md", "## 1.2.3", "## 1.2.4", "CHANGELOG.md has no section '## 1.2.3'"),
        ("CHANGELOG.md", "## Unreleased\n", "## Unreleased\n\n- New.\n", "changes below '## Unreleased'"),
        (
            "CHANGELOG.md",
            "## Unreleased\n",
            f"## Unreleased\n\n{chr(10).join(['- New.'] * 40_000)}\n",
            "changes below '## Unreleased'",
        ),
        ("CHANGELOG.md", "## 1.2.3", "## 1.2.3, soon", "CHANGELOG.md has no section '## 1.2.3'"),
        ("mxtrain/__init__.py", "1.2.3", "1.2", "__version__ = '1.2' is not of the form 1.2.3"),
        ("mxtrain/__init__.py", "1.2.3", "1.2.3rc1", "__version__ = '1.2.3rc1' is not of the form 1.2.3"),
        ("mxtrain/__init__.py", "1.2.3", "v1.2.3", "__version__ = 'v1.2.3' is not of the form 1.2.3"),
        ("mxtrain/__init__.py", "1.2.3", "1.2.2", "the tag v1.2.2 exists"),
    ],
)
def test_release_requires_agreement_of_version_changes_and_tags(
    tmp_path: Path, file: str, old: str, new: str, words: str
) -> None:
    write_release(tmp_path, lambda: (tmp_path / file).write_text((tmp_path / file).read_text().replace(old, new)))
    done = subprocess.run(["scripts/release", "--check"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert words in done.stdout + done.stderr
    assert done.returncode == (0 if "can be released" in words else 2)


def test_release_refuses_a_misspelled_option(tmp_path: Path) -> None:
    (tmp_path / "scripts").mkdir()
    release = shutil.copy(ROOT / "scripts/release", tmp_path / "scripts/release")
    done = subprocess.run([release, "--chek"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: scripts/release takes --dry-run or --check, not '--chek'\n"


def test_release_passes_over_pythons_that_do_not_start(tmp_path: Path) -> None:
    """Like those that pyenv puts on PATH for versions that are not selected."""
    checkout = tmp_path / "checkout"
    checkout.mkdir()
    write_release(checkout)
    (tmp_path / "bin").mkdir()
    for minor in (9, 10, 11):
        _program(tmp_path / f"bin/python3.{minor}", "#!/bin/sh\nexit 127\n")
    environ = {**os.environ, "PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "PYENV_ROOT": str(tmp_path)}
    command = ["scripts/release", "--dry-run"]
    done = subprocess.run(command, cwd=checkout, env=environ, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (2, "error: there is no Python 3.9, on which the wheel is tried\n")


def test_release_requires_a_clean_tree(tmp_path: Path) -> None:
    write_release(tmp_path)
    (tmp_path / "new").touch()
    done = subprocess.run(["scripts/release", "--check"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "not committed" in done.stderr


CI = ROOT / ".ci/run"
BUILDS = ("g++", "cc", "gcc-12", "make", "cmake", "chromium", "srun", "sbatch", "sshd", "ssh", "mpirun")
"""Commands that a stranger may not have."""


@pytest.fixture
def ci_checkout(tmp_path: Path) -> Path:
    """A checkout whose scripts note how they are called, beside a compiler, a browser and launchers."""
    copy = tmp_path / "checkout"
    _program(copy / ".ci/run", CI.read_text())
    for tool in BUILDS:
        _program(tmp_path / "tools" / tool, "#!/bin/sh\n")
    for script in ("train", "test", "horovod", "lint", "torch"):
        _program(
            copy / "scripts" / script,
            f"""#!/usr/bin/env bash
            found="$(for tool in {" ".join(BUILDS)}; do type -P "$tool"; done | wc -l)"
            printf '%s\\n' "{script} $*, $found tools, $(ls "$XDG_CACHE_HOME" 2> /dev/null | wc -l) cached" >> "$LOG"
            [[ -z "${{MXTRAIN_TESTS_PASSED:-}}" ]] || echo tests/test_a.py::test_b > "$MXTRAIN_TESTS_PASSED"
            [[ "{script}" != "${{FAILS:-}}" ]]
        """,
        )
    shutil.copy(ROOT / "scripts/_env.sh", copy / "scripts/_env.sh")
    (copy / ".venv").mkdir()
    return copy


def _run_ci(checkout: Path, **environ: str) -> tuple[int, list[str]]:
    log, cache = checkout / "log", checkout / "cache"
    (cache / "mxtrain").mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        [checkout / ".ci/run"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={
            **os.environ,
            "PATH": f"{checkout.parent}/tools:{os.environ['PATH']}",
            "LOG": str(log),
            "MXTRAIN_CI_PYTHONS": "",
            "XDG_CACHE_HOME": str(cache),
            "MXTRAIN_PYTHON": "true",
            **environ,
        },
    )
    return done.returncode, log.read_text().splitlines()


@pytest.mark.slow
def test_ci_runs_readme_commands_in_a_fresh_checkout(ci_checkout: Path) -> None:
    block = re.search(r"## Installation\n\n```\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert block is not None
    typed = [line.split("#")[0].split() for line in block[1].splitlines()]
    commands = [words for words in typed if words and words[0].startswith("scripts/")]
    assert commands == [["scripts/train"], ["scripts/test"]]
    code, calls = _run_ci(ci_checkout)
    assert code == 0
    assert calls[:2] == ["train , 0 tools, 0 cached", "test , 0 tools, 0 cached"]
    assert calls[2] == f"horovod , {len(BUILDS)} tools, 1 cached"
    (tested,) = (call for call in calls[3:] if not call.startswith("lint ,"))  # at the same time
    assert re.match(r"test --all --omit=\S+/passed -n 2 .* -n 3, ", tested) and len(calls) == 5


@pytest.mark.slow
@pytest.mark.parametrize("fails", ["", "torch"])
def test_ci_runs_tests_that_need_torch_after_the_others(ci_checkout: Path, fails: str) -> None:
    for name, line in (("a", 'pytest.importorskip("torch")'), ("b", 'pytest.importorskip("timm.models")'), ("c", "")):
        (ci_checkout / "tests").mkdir(exist_ok=True)
        (ci_checkout / f"tests/test_{name}.py").write_text(f"{line}\n")
    code, calls = _run_ci(ci_checkout, FAILS=fails)
    assert code == bool(fails) and calls[5].startswith("torch ,")
    if fails:
        assert len(calls) == 6
    else:
        words = calls[6].partition(",")[0].split()
        assert words[:2] == ["test", "--all"] and re.fullmatch(r"--omit=\S+/passed", words[2])
        assert sorted(words[-2:]) == ["tests/test_a.py", "tests/test_b.py"] and len(calls) == 7


@pytest.mark.slow
def test_ci_prepares_another_python_once_before_its_tests(ci_checkout: Path, tmp_path: Path) -> None:
    _program(tmp_path / "tools" / "python3.10", "#!/bin/sh\n")
    code, calls = _run_ci(ci_checkout, MXTRAIN_CI_PYTHONS="3.10")
    assert code == 0 and len([call for call in calls[:-1] if call.startswith("test --version,")]) == 1, calls
    assert " --dist worksteal -m not slow and not zoo tests/files tests/config " in calls[-1]


@pytest.mark.slow
@pytest.mark.parametrize("script, calls", [("train", 1), ("test", 5), ("lint", 5)])
def test_ci_fails_if_a_readme_command_fails(ci_checkout: Path, script: str, calls: int) -> None:
    """Without an environment it ends; after failed tests the others run, too."""
    code, called = _run_ci(ci_checkout, FAILS=script)
    assert code != 0 and len(called) == calls


def _copy_conftest(folder: Path) -> None:
    shutil.copy(ROOT / "tests/conftest.py", folder)
    for file in (ROOT / "tests/support").glob("*.py"):
        shutil.copy(file, folder)


@pytest.mark.slow
def test_tests_that_passed_are_left_out_of_a_further_run(tmp_path: Path) -> None:
    """In processes of pytest-xdist, as in CI; skipped and failed tests run again."""
    _copy_conftest(tmp_path)
    (tmp_path / "test_a.py").write_text("""
import os, pytest
def test_passes(): assert "MXTRAIN_TESTS_PASSED" not in os.environ
def test_skips(): pytest.skip("without a reason")
def test_fails(): assert False
@pytest.mark.xfail
def test_is_expected_to_fail(): assert False
""")
    passed = tmp_path / "passed"
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-n",
        "2",
        "-c",
        os.devnull,
        "--rootdir",
        str(tmp_path),
        str(tmp_path),
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    first = subprocess.run(
        command, env={**environment, "MXTRAIN_TESTS_PASSED": str(passed)}, capture_output=True, text=True
    )
    assert "1 failed, 1 passed, 1 skipped, 1 xfailed" in first.stdout, first.stdout
    assert passed.read_text() == "test_a.py::test_passes\n"
    command += ["-n", "0", f"--omit={passed}"]
    second = subprocess.run(command, env=environment, capture_output=True, text=True).stdout
    assert "1 failed, 1 skipped, 1 deselected, 1 xfailed" in second, second


@pytest.mark.slow
def test_markers_of_cases_select_them_by_id(tmp_path: Path) -> None:
    _copy_conftest(tmp_path)
    (tmp_path / "test_a.py").write_text("""
import pytest
@pytest.mark.slow_cases("1", "3")
@pytest.mark.zoo_except("1", "2")
@pytest.mark.parametrize("number", [1, 2, 3])
def test_numbers(number): pass
@pytest.mark.slow
def test_slow(): pass
""")
    (tmp_path / "test_b.py").write_text("def test_first(): pass\n")
    (tmp_path / "test_c.py").write_text("import pytest\n@pytest.mark.slow(9)\ndef test_slowest(): pass\n")
    command = [sys.executable, "-m", "pytest", "-q", "--collect-only", "-p", "no:cacheprovider", "-c", os.devnull]

    def select(marks: str) -> list[str]:
        words = [*command, "--rootdir", str(tmp_path), "-m", marks, str(tmp_path)]
        done = subprocess.run(words, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True)
        return re.findall(r"::(\S+)", done.stdout)

    assert select("not slow and not zoo") == ["test_numbers[2]", "test_first"]
    # The file whose slow test counts as nine is the first one.
    assert select("slow") == ["test_slowest", "test_numbers[1]", "test_numbers[3]", "test_slow"]
    assert select("zoo") == ["test_numbers[3]"]


def test_files_that_ci_runs_on_other_pythons_exist() -> None:
    found = re.findall(r"  chosen(?:_on_310)?=\((.*?)\)\n", (ROOT / ".ci/run").read_text(), re.DOTALL)
    assert len(found) == 3
    expanded = subprocess.run(
        ["bash", "-c", f"echo {' '.join(' '.join(found).split())}"], capture_output=True, text=True
    )
    names = [word.rpartition("=")[2] for word in expanded.stdout.split()]
    assert len(names) > 10 and [name for name in names if not (ROOT / name).exists()] == []
