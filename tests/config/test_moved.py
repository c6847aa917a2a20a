"""Moved import paths: descriptions, YAML files and `import` statements that name them still work."""

from __future__ import annotations

import importlib
import os
import sys
import warnings
from pathlib import Path
from typing import List, Tuple

import pytest

from mxtrain.composing.composer import Composer
from mxtrain.config.moved import MOVED, UNTIL, current_path, moved_targets, with_current_paths
from mxtrain.config.specs import import_target
from mxtrain.config.trust import foreign_targets, named_targets

PACKAGE = Path(importlib.import_module("mxtrain").__file__).parent  # type: ignore[arg-type]
TARGETS = (Path(__file__).parent / "targets_5273d801.txt").read_text().split()
REMOVED = (
    "mxtrain.callback.chaos.Chaos",  # injects faults for developers, now in scripts/
    "mxtrain.logger.aim.Aim",  # these three are examples now
    "mxtrain.logger.clearml.ClearMl",
    "mxtrain.logger.comet.Comet",
)
"""Classes of options that exist no more."""


def is_module(name: str) -> bool:
    path = PACKAGE.joinpath(*name.split(".")[1:])
    return path.with_suffix(".py").exists() or (path / "__init__.py").exists()


def test_new_paths_exist() -> None:
    for new in set(MOVED.values()):
        assert current_path(new) == new, "the table leads to today's path in one step"
        assert is_module(new) or isinstance(import_target(new, "x"), type)


def test_old_paths_of_modules_are_free() -> None:
    """Else the table would hide a module."""
    assert list(filter(is_module, MOVED)) == []


@pytest.mark.slow
def test_classes_of_earlier_options_are_found() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", FutureWarning)
        found = {target: import_target(target, "x") for target in TARGETS if target not in REMOVED}
    assert len(found) > 200 and all(isinstance(one, type) for one in found.values())


def test_longest_prefix_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    assert current_path("mxtrain.parallel.strategies.Data") == "mxtrain.parallel.spec.Data"
    assert current_path("mxtrain.server.table_server.Server") == "mxtrain.kvstore.server.table_server.Server"
    assert current_path("mxtrain.description.trainer.Trainer") == "mxtrain.training.spec.Trainer"
    assert current_path("mxtrain.amp.Float16") == "mxtrain.amp.spec.Float16"
    for unmoved in ("mxtrain.amp.spec.Float16", "mxtrain.servers.X", "shapes.Net", "mxtrain", ""):
        assert current_path(unmoved) == unmoved
    monkeypatch.setitem(MOVED, "mxtrain.server.table_server.Server", "mxtrain.elsewhere.Server")
    assert current_path("mxtrain.server.table_server.Server.x") == "mxtrain.elsewhere.Server.x"


def test_all_targets_in_a_description_are_updated() -> None:
    description = {
        "amp": {"_target_": "mxtrain.amp.Float16", "name": "mxtrain.amp.Float16"},
        "x": [{"_target_": "mxtrain.task.base.Task"}, {"_target_": "shapes.Net"}, {"_target_": 3}],
    }
    assert with_current_paths(description) == {
        "amp": {"_target_": "mxtrain.amp.spec.Float16", "name": "mxtrain.amp.Float16"},
        "x": [{"_target_": "mxtrain.task.spec.Task"}, {"_target_": "shapes.Net"}, {"_target_": 3}],
    }
    assert list(moved_targets(description)) == [
        ("amp._target_", "mxtrain.amp.Float16"),
        ("x.0._target_", "mxtrain.task.base.Task"),
    ]


def test_old_paths_are_trusted_as_the_new_ones_are(tmp_path: Path) -> None:
    assert list(foreign_targets({"amp": {"_target_": "mxtrain.amp.Float16"}})) == []
    other = {"amp": {"_target_": "mxtrain.parallel.strategies.Data"}}  # of another group
    assert list(foreign_targets(other)) == [("amp._target_", "mxtrain.parallel.strategies.Data")]
    (tmp_path / "own.yaml").write_text("_target_: mxtrain.task.base.Task\n")
    assert named_targets([str(tmp_path)]) == {"mxtrain.task.spec.Task"}


@pytest.mark.slow
def test_a_yaml_file_with_an_old_path_works_and_is_named(tmp_path: Path) -> None:
    file = tmp_path / "amp" / "half.yaml"
    file.parent.mkdir()
    file.write_text("# Mine.\n_target_: mxtrain.amp.Float16\n")
    with Composer([str(tmp_path)]) as composer, pytest.warns(FutureWarning, match="is now") as warned:
        composed = composer.compose(["amp=half"])
    assert composed.config["amp"]["_target_"] == composed.tree.amp._target_ == "mxtrain.amp.spec.Float16"
    (message,) = (str(warning.message) for warning in warned)
    shown = min(str(file), os.path.relpath(file), key=len)
    assert f"{shown}:2" in message and "mxtrain.amp.spec.Float16" in message


IMPORTS: List[Tuple[str, str]] = [
    ("from mxtrain.task.base import Task as found", "mxtrain.task.spec.Task"),
    ("import mxtrain.task.base; found = mxtrain.task.base.Task", "mxtrain.task.spec.Task"),
    ("from mxtrain.download.transfer import WrongContent as found", "mxtrain.files.download.transfer.WrongContent"),
    ("from mxtrain.amp import Float16 as found", "mxtrain.amp.spec.Float16"),
    ("from mxtrain.callback import CustomCallback as found", "mxtrain.callback.spec.CustomCallback"),
    ("from mxtrain.description.groups import GROUPS as found", "mxtrain.config.groups.GROUPS"),
    ("import mxtrain.process.heartbeat as old; found = old.Heartbeat", "mxtrain.cluster.heartbeat.Heartbeat"),
    ("from mxtrain.kvstore import Local as found", "mxtrain.kvstore.spec.Local"),
    ("from mxtrain.early_stopping import EarlyStopping as found", "mxtrain.early_stopping.spec.EarlyStopping"),
]


@pytest.mark.parametrize("statement, path", IMPORTS)
def test_import_statements_with_old_paths_warn(statement: str, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [
        name
        for name in sys.modules
        if name in MOVED or name.startswith(("mxtrain.download", "mxtrain.description", "mxtrain.process"))
    ]:
        monkeypatch.delitem(sys.modules, name)
    namespace = {"__name__": "own"}
    with pytest.warns(DeprecationWarning, match="has moved to") as warned:
        exec(compile(statement, "own.py", "exec"), namespace)
    module, _, name = path.rpartition(".")
    assert namespace["found"] is getattr(importlib.import_module(module), name)  # no second class
    last = warned[-1]
    assert last.filename == "own.py" and UNTIL in str(last.message) and module in str(last.message)


def test_moved_classes_are_imported_from_their_old_modules() -> None:
    for old, new in MOVED.items():
        module, _, name = old.rpartition(".")
        if name[0].isupper() and name not in vars(importlib.import_module(module)):  # not imported there anyway
            with pytest.warns(DeprecationWarning, match="has moved to"):
                found = getattr(importlib.import_module(module), name)
            assert found is import_target(new, "x")


def test_modules_that_never_existed_are_refused() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"No module named 'mxtrain\.never'"):
        importlib.import_module("mxtrain.never")
    with pytest.raises(ImportError, match="cannot import name 'Never'"):
        exec("from mxtrain.amp import Never", {})
    # A module of this name would hide the function.
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("mxtrain.runs")
    assert callable(importlib.import_module("mxtrain").runs)


def test_old_paths_are_removed_in_the_announced_version() -> None:
    """When this fails, remove the finder of `mxtrain`, `moved_names` and this test; `MOVED` stays for old runs."""
    now = importlib.import_module("mxtrain").__version__
    assert [int(part) for part in now.split(".")] < [int(part) for part in UNTIL.split(".")]
