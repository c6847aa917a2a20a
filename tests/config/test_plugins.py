"""Plug-ins: options of installed packages, found without flags, trusted, and refused with the name of the package."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
import venv
from pathlib import Path
from typing import Any, Callable, Iterator

import pytest

from mxtrain.composing.composer import Composer
from mxtrain.config import options
from mxtrain.config.plugins import Plugin, conf_dirs, find_plugins, is_installed, plugin_of, require_usable_plugins
from mxtrain.config.specs import own_spec
from mxtrain.config.trust import foreign_targets, require_trusted
from mxtrain.errors import ConfigError
from mxtrain.workflows import doctor

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "plugin_time"
MODULE = """
import os
from mxtrain.model.mlp import MLP
from mxtrain.model.spec import Model

class Wide(MLP):
    hidden = [512]

class Unlisted(Model):
    pass

class Plain:
    pass

def delete(path):
    os.remove(path)

def network(num_classes):
    pass
"""


def clear_caches() -> None:
    for cached in (find_plugins, options.task_for, options.usual_options, options.own_classes):
        cached.cache_clear()


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Path]]:
    """Installs a package with files of options; returns its folder."""
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(str(site))

    def make(name: str, *files: str, content: str = "", value: str = "") -> Path:
        module = f"plugged_{name}"
        metadata = site / f"mxtrain_{name}-1.2.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: mxtrain-{name}\nVersion: 1.2\n")
        (metadata / "entry_points.txt").write_text(f"[mxtrain.plugins]\n{name} = {value or module}\n")
        (site / module).mkdir()
        (site / module / "__init__.py").write_text(MODULE.replace("hidden = ", "hidden: list = "))
        for file in files:
            path = site / module / "conf" / f"{file}.yaml"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content or f"_target_: {module}.Wide\n")
        clear_caches()
        return site / module

    clear_caches()
    yield make
    clear_caches()
    for name in [name for name in sys.modules if name.startswith("plugged_")]:
        del sys.modules[name]


def test_options_of_a_package_are_found_without_importing_it(install: Callable[..., Path]) -> None:
    folder = install("one", "model/wide", "model/wider")
    assert find_plugins() == (Plugin("one", "mxtrain-one 1.2", "plugged_one", folder / "conf"),)
    assert conf_dirs() == (ROOT / "conf", folder / "conf")
    with Composer() as composer:
        assert {"wide", "wider", "mlp"} <= set(composer.options("model"))
    assert is_installed("plugged_one.Wide") and not is_installed("plugged_ones.Wide")
    assert plugin_of("plugged_one") is None
    assert "plugged_one" not in sys.modules


@pytest.mark.slow
def test_plugin_classes_have_defaults_without_the_current_folder(
    install: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install("one", "model/wide")
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    before = list(sys.path)
    with Composer() as composer:
        composed = composer.compose(["model=wide"])
        assert composed.config["model"]["hidden"] == [512]
        with pytest.raises(ConfigError, match=r"Did you mean 'wide'\?"):
            composer.compose(["model=wid"])
        with pytest.raises(ConfigError, match=r"Did you mean 'model\.hidden'\?"):
            composer.compose(["model=wide", "model.hiden=[3]"])
        assert composer.class_of("model", "wide") is own_spec("plugged_one.Wide")
    assert sys.path == before
    assert options.option_classes("model")["wide"].__name__ == "Wide"


def test_classes_of_a_plugin_are_trusted_in_files(install: Callable[..., Path]) -> None:
    install("one", "model/wide", "model/net", content="_target_: plugged_one.network\n")

    def is_trusted(target: str) -> bool:
        return not list(foreign_targets({"model": {"_target_": target}}))

    assert is_trusted("plugged_one.network")  # its YAML files name it
    assert is_trusted("plugged_one.Unlisted")
    assert list(foreign_targets({"dataset": {"transforms": [{"_target_": "plugged_one.Unlisted"}]}})) == []
    for target in ("delete", "Plain", "os.remove", "MLP", "Never", "never.Never"):
        assert not is_trusted(f"plugged_one.{target}"), target
    assert not is_trusted("plugged_two.Unlisted")


def test_duplicate_option_name_is_refused_with_both_packages(install: Callable[..., Path], tmp_path: Path) -> None:
    install("one", "model/wide")
    install("two", "model/wide")
    with pytest.raises(ConfigError) as caught:
        require_usable_plugins()
    for words in ("'two'", "mxtrain-two 1.2", "the option model/wide", "mxtrain-one 1.2", "pip uninstall mxtrain-two"):
        assert words in str(caught.value)
    assert len(conf_dirs()) == 2
    with pytest.raises(ConfigError, match="mxtrain-two"):
        Composer()
    (tmp_path / "mine" / "model").mkdir(parents=True)
    (tmp_path / "mine" / "model" / "wide.yaml").touch()
    with pytest.raises(ConfigError, match=r"a plug-in \(.*plugged_one/conf\) has a file of this name"):
        Composer([str(tmp_path / "mine")], check_plugins=False)


def test_an_option_of_mxtrain_is_not_replaced(install: Callable[..., Path]) -> None:
    install("one", "model/mlp")
    with pytest.raises(ConfigError, match=r"has the option model/mlp, which mxtrain has as well"):
        require_usable_plugins()
    assert conf_dirs() == (ROOT / "conf",)


@pytest.mark.parametrize(
    "value, words",
    [
        ("plugged_missing", "names 'plugged_missing', which is no installed package"),
        ("plugged_one:conf", "names 'plugged_one:conf', which is no installed package"),
        ("mxtrain.cli", "names 'mxtrain.cli', which is no installed package"),
        ("plugged_one.inner", "has no folder conf in its package plugged_one.inner"),
        ("", "has no folder conf in its package plugged_one"),
    ],
)
def test_a_broken_package_is_named(value: str, words: str, install: Callable[..., Path]) -> None:
    install("one", value=value)
    with pytest.raises(ConfigError) as caught:
        require_usable_plugins()
    assert words in str(caught.value) and "mxtrain-one 1.2" in str(caught.value)
    (finding,) = doctor.judge_plugins()
    assert finding.state == "problem" and words in finding.value and "uninstall mxtrain-one" in finding.remedy


def test_help_works_without_a_broken_package(
    install: Callable[..., Path], capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mxtrain.cli import main

    install("one", value="plugged_missing")
    install("two", "model/wide")
    assert main(["--help"]) == 0
    output = capsys.readouterr()
    assert output.err.startswith("warning: the plug-in 'one'") and "wide" in output.out
    assert main(["model=mlp", "--cfg", "job"]) == 2
    assert capsys.readouterr().err.startswith("error: the plug-in 'one'")
    (broken, works) = doctor.judge_plugins()
    assert works.state == "ok" and works.value == "mxtrain-two 1.2: 1 option, classes of plugged_two"


def test_current_folder_installs_no_plugins(install: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    folder = install("one", "model/wide")
    monkeypatch.chdir(folder.parent)
    monkeypatch.syspath_prepend("")
    clear_caches()
    assert find_plugins() == ()


def test_option_of_a_plugin_that_is_not_yaml_is_named_with_its_line(install: Callable[..., Path]) -> None:
    file = install("one", "model/wide", content="_target_: [\n") / "conf" / "model" / "wide.yaml"
    with Composer() as composer, pytest.raises(ConfigError, match=r"^(.*):2: this is not YAML: ") as raised:
        composer.compose(["model=wide"])
    assert Path(str(raised.value).partition(":2:")[0]).resolve() == file


def test_module_that_ends_the_process_is_an_error(install: Callable[..., Path]) -> None:
    folder = install("one", "model/wide")
    (folder / "__init__.py").write_text("raise SystemExit(3)\n")
    with Composer() as composer, pytest.raises(ConfigError, match="importing it failed: SystemExit: 3"):
        composer.compose(["model=wide"])


def test_run_of_a_plugin_that_was_removed_names_its_package(
    install: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    hint = " If they belong to a plug-in, install its package: unplugged is not installed here."
    config = {"model": {"_target_": "unplugged.Wide"}}
    with pytest.raises(ConfigError) as raised:
        require_trusted(config, "run", "eval", [], [])
    assert str(raised.value).endswith(hint)
    install("two", value="absent")
    for target in ("plugged_two.Wide", "here.Wide", "a b.Wide"):
        (tmp_path / "here.py").touch()
        with pytest.raises(ConfigError) as raised:
            require_trusted({"model": {"_target_": target}}, "run", "eval", [], [])
        assert "plug-in" not in str(raised.value)


@pytest.mark.parametrize(
    "requirement, problem",
    [
        ("mxtrain>=9", "needs mxtrain>=9, and this is version 0.1.0"),
        ("mxtrain>=0.1", ""),
        ("mxtrain>=9; extra == 'x'", ""),
        ("other>=9", ""),
        ("mxtrain >> 9", ""),
    ],
)
def test_plugin_that_needs_another_version(install: Callable[..., Path], requirement: str, problem: str) -> None:
    folder = install("one", "model/wide")
    with (folder.parent / "mxtrain_one-1.2.dist-info" / "METADATA").open("a") as file:
        file.write(f"Requires-Dist: {requirement}\n")
    assert [plugin.problem for plugin in find_plugins()] == [problem]
    assert is_installed("plugged_one.Wide") == (not problem)


def test_unreadable_folder_of_the_search_path_is_left_out(
    install: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install("one", "model/wide")
    listdir = os.listdir

    def list_folder(path: str) -> list[str]:
        if path == str(tmp_path / "locked"):
            raise PermissionError(13, "Permission denied")
        return listdir(path)

    (tmp_path / "locked").mkdir()
    monkeypatch.setattr(os, "listdir", list_folder)
    monkeypatch.syspath_prepend(str(tmp_path / "locked"))
    clear_caches()
    assert [plugin.name for plugin in find_plugins()] == ["one"]


def test_first_of_two_installed_versions_is_used(
    install: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = install("one", "model/wide")
    shutil.copytree(folder.parent, tmp_path / "later")
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path / "later"), str(tmp_path / "absent")])
    clear_caches()
    assert [plugin.conf for plugin in find_plugins()] == [folder / "conf"]


def build_wheel(source: Path, folder: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    done = subprocess.run(command, cwd=source, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_the_example_is_installed_in_a_fresh_environment_and_trained(tmp_path: Path) -> None:
    """mxtrain and the plug-in are wheels there; MXNet and the other packages are those of this environment."""
    pytest.importorskip("hatchling", reason="scripts/test installs it")
    for source in (ROOT, EXAMPLE):
        build_wheel(source, tmp_path / "wheels")
    venv.create(tmp_path / "env", with_pip=False, symlinks=True)
    python = tmp_path / "env" / "bin" / "python"
    (site,) = (tmp_path / "env" / "lib").glob("python*/site-packages")
    own = [path for path in sys.path if path.endswith("site-packages")]
    (site / "packages.pth").write_text("".join(f"{path}\n" for path in own))
    wheels = [str(path) for path in (tmp_path / "wheels").glob("*.whl")]
    install = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--quiet", "--target", str(site)]
    subprocess.run([*install, *wheels], check=True, capture_output=True)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    work = tmp_path / "work"
    work.mkdir()

    def run(*arguments: str) -> Any:
        command = [str(python), "-m", "mxtrain", *arguments]
        return subprocess.run(
            command, cwd=work, env=environment, capture_output=True, text=True, timeout=200, check=False
        )

    small = ("trainer.max_epochs=2", "dataset.num_train=256", "model.units=16", "logger=jsonl")
    done = run("dataset=waves", *small, "hydra.run.dir=run")
    assert done.returncode == 0, done.stderr
    assert "test/forecast_error=" in done.stdout and "--config-dir" not in done.stdout
    done = run("eval", "run")
    assert done.returncode == 0, done.stderr
    assert "forecast_error" in done.stdout
    done = run("predict", "run", "sample=1")
    assert done.returncode == 0 and '"t+8"' in done.stdout, done.stderr
    assert "mxtrain-time 0.1.0: 5 options" in run("doctor").stdout
    assert "waves" in run("--help").stdout
    code = "import mxtrain; print(mxtrain.__file__)"
    assert (
        str(site)
        in subprocess.run([python, "-c", code], cwd=work, env=environment, capture_output=True, text=True).stdout
    )


def test_the_scan_of_the_path_is_short() -> None:
    """It takes about a millisecond: `--help` would notice more. importlib.metadata takes 16 ms and up."""
    script = """
        import sys, time
        from mxtrain.config.plugins import find_plugins
        start = time.process_time()
        find_plugins()
        print(time.process_time() - start, "importlib.metadata" in sys.modules)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], cwd=ROOT, capture_output=True, text=True, check=True
    )
    seconds, has_metadata = done.stdout.split()
    assert float(seconds) < 0.05 and has_metadata == "False"
