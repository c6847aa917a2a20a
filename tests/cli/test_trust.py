"""A checkpoint of unknown origin makes `eval` and `predict` run only code of mxtrain."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any, Dict

import pytest

from mxtrain.cli import main
from mxtrain.config.locations import conf_dir
from mxtrain.config.override_text import code_arguments
from mxtrain.config.trust import foreign_targets, is_own

BOMB = "import pathlib\npathlib.Path({mark!r}).touch()\ndef network(classes=0):\n    raise SystemExit(77)\n"


def put(description: Dict[str, Any], place: str, value: Any) -> None:
    *parents, last = place.split("/")
    node: Any = description
    for name in parents:
        node = node.setdefault(name, {})
    node[last] = value


@pytest.fixture
def stranger(tmp_path, description, write_run, monkeypatch):
    """(path in the description, value) -> somebody's run, in a folder with modules that leave a mark when imported."""
    mark = tmp_path / "executed"
    for name in ("bomb", "horovod_like"):
        (tmp_path / f"{name}.py").write_text(BOMB.format(mark=str(mark)))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setattr(sys, "modules", dict(sys.modules))

    def make(place: str, value: Any) -> Path:
        put(description, place, value)
        return write_run(description)

    make.mark = mark
    return make


HOSTILE = (
    ("model/_target_", "os.system"),
    ("model/_target_", "bomb.network"),
    ("dataset/_target_", "bomb.network"),
    ("task/_target_", "bomb.network"),
    ("task/_target_", "mxtrain.task.fit.require_same_names"),
    ("task/_target_", "mxtrain.vision.classification.digits.Digits"),
    ("loss/_target_", "subprocess.call"),
    ("optimizer/_target_", "builtins.exec"),
    ("early_stopping/_target_", "bomb.network"),
    ("amp/_target_", "bomb.network"),  # read before the others, for the runtime
    ("runtime/_target_", "bomb.network"),
    ("trainer/_target_", "bomb.network"),
    ("callback/x", {"_target_": "bomb.network"}),
    ("logger/x", {"_target_": "bomb.network"}),
    ("metric/x", {"_target_": "bomb.network"}),
    ("model/_target_", "mxtrain.cli.main"),
    ("model/_target_", "mxtrain.vision.classification.gluoncv.pydantic"),
    ("model/_target_", "mxtrain.model.spec.Spec"),
    ("model/_target_", "mxtrain.model.prepare.prepare_network"),
    ("model/_target_", "mxtrain.optimizer.optimizers.SGD"),
    ("model/_target_", "mxtrain.model.custom.Wrapped"),
    ("model/_target_", "mxtrainer.model.Net"),
    ("model/options", {"deep": [{"_target_": "bomb.network"}]}),
    ("model/_target_", ["bomb.network"]),
    ("callback/own._target_", {"_target_": "bomb.network"}),
    ("dataset/root", "${oc.env:HOME}"),
    ("runtime/env", {"CXX": "/tmp/own-compiler"}),
    ("runtime/env", {"LD_PRELOAD": "/tmp/own.so"}),
    ("runtime/env", {"PATH": "."}),
    ("runtime/env", {"XDG_CACHE_HOME": "/tmp"}),
    ("runtime/env", {"MXNET_LIBRARY_PATH": "libmxnet.so"}),
    ("runtime/env", {"OMP_TOOL_LIBRARIES": "own.so"}),
    ("runtime/env", {"DMLC_ROLE": "server"}),
    ("runtime/env", {"MXNET_HOME": "own"}),
    ("runtime/env", {"MXNET_ENGINE_TYPE": "/a/b"}),
)


@pytest.mark.parametrize("place, value", HOSTILE)
def test_every_reference_to_code_is_found(description, place, value):
    put(description, place, value)
    found = dict(foreign_targets(description))
    assert len(found) == 1 and next(iter(found)).startswith(place.split("/")[0] + ".")


@pytest.mark.zoo_except(
    "model/_target_-bomb.network-eval", "task/_target_-bomb.network-predict", "amp/_target_-bomb.network-eval"
)
@pytest.mark.slow
@pytest.mark.parametrize("command", ["eval", "predict"])
@pytest.mark.parametrize("place, value", [HOSTILE[1], HOSTILE[3], HOSTILE[8], HOSTILE[9]])
def test_targets_in_a_checkpoint_are_refused_before_import(stranger, capsys, command, place, value):
    run_dir = stranger(place, value)
    before, environment = sorted(run_dir.rglob("*")), dict(os.environ)
    assert main([command, str(run_dir), *(["x.png"] if command == "predict" else [])]) == 2
    said = capsys.readouterr().err
    assert "--trust-code" in said and place.replace("/", ".") in said and "=bomb.network" in said
    assert not stranger.mark.exists() and sorted(run_dir.rglob("*")) == before and dict(os.environ) == environment


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [["--trust-code"], ["model._target_=bomb.network"], ["--config-dir", "own"]])
def test_trusted_modules_are_imported(stranger, capsys, arguments):
    run_dir = stranger("model/_target_", "bomb.network")
    (run_dir.parent / "own" / "model").mkdir(parents=True)
    (run_dir.parent / "own" / "model" / "mine.yaml").write_text("_target_: bomb.network\n")
    assert main(["eval", str(run_dir), *arguments]) == 2  # its arguments are not those of model=lenet
    assert "--trust-code" not in capsys.readouterr().err
    assert stranger.mark.exists()


@pytest.mark.slow
def test_config_dir_without_the_class_is_reported(stranger, description, capsys):
    put(description, "dataset/_target_", "bomb.network")
    run_dir = stranger("model/_target_", "bomb.network")
    (run_dir.parent / "own").mkdir()
    assert main(["eval", str(run_dir)]) == 2
    said = capsys.readouterr().err
    assert "--config-dir FOLDER whose YAML names the class (the one that the run was given), or type what you" in said
    assert said.endswith("meant: dataset._target_=package.Class model._target_=package.Class.\n")
    assert main(["eval", str(run_dir), "--config-dir", "own"]) == 2
    assert "(the one that the run was given; own names none of these)" in capsys.readouterr().err


@pytest.mark.slow
def test_trusted_class_outside_the_path_names_pythonpath(stranger, tmp_path, capsys):
    run_dir = stranger("model/_target_", "elsewhere.network")
    (tmp_path / "own" / "model").mkdir(parents=True)
    (tmp_path / "own" / "model" / "mine.yaml").write_text("_target_: elsewhere.network\n")
    assert main(["eval", str(run_dir), "--config-dir", "own"]) == 2
    said = capsys.readouterr().err
    assert "no module 'elsewhere'" in said and "Type PYTHONPATH=FOLDER before the command" in said


@pytest.mark.slow
def test_trusting_one_class_trusts_no_other(stranger, capsys):
    run_dir = stranger("early_stopping/_target_", "bomb.network")
    assert main(["eval", str(run_dir), "model=mlp", "dataset.eval_batch_size=64"]) == 2
    assert "early_stopping._target_=bomb.network" in capsys.readouterr().err
    assert not stranger.mark.exists()


def test_typed_mapping_does_not_trust_recorded_values(stranger, capsys):
    run_dir = stranger("runtime/env", {"LD_PRELOAD": "/tmp/own.so"})
    assert main(["eval", str(run_dir), "runtime.env={OMP_DYNAMIC: 'false'}"]) == 2
    assert "runtime.env.LD_PRELOAD=/tmp/own.so" in capsys.readouterr().err and "LD_PRELOAD" not in os.environ


@pytest.mark.slow
def test_callbacks_of_a_run_are_not_imported_by_eval(stranger, capsys):
    run_dir = stranger("callback/x", {"_target_": "bomb.network"})
    main(["eval", str(run_dir)])
    assert "--trust-code" not in capsys.readouterr().err and not stranger.mark.exists()


@pytest.mark.slow
def test_typed_group_is_trusted(stranger, capsys):
    run_dir = stranger("model/_target_", "bomb.network")
    main(["eval", str(run_dir), "model=mlp"])
    assert "--trust-code" not in capsys.readouterr().err and not stranger.mark.exists()


def test_every_bundled_option_is_trusted(description):
    assert list(foreign_targets(description)) == []
    for file in conf_dir().rglob("*.yaml"):
        found = re.findall(r"^ *_target_: (mxtrain\..*)$", file.read_text(encoding="utf-8"), re.MULTILINE)
        assert all(is_own(target, file.parent.name) for target in found), file


@pytest.mark.parametrize(
    "env", [{"MXNET_SAFE_ACCUMULATION": 1}, {"OMP_PROC_BIND": "close"}, {"MXNET_ENGINE_TYPE": "Naive"}]
)
def test_computation_variables_need_no_trust(description, env):
    description["runtime"]["env"] = env
    assert list(foreign_targets(description)) == []


@pytest.mark.parametrize(
    "arguments", [["--trust-code"], ["verify", "--trust-code"], ["explain", "model", "--trust-code"]]
)
def test_trust_code_is_refused_by_other_commands(arguments, capsys):
    assert main(arguments) == 2
    assert "--trust-code goes with eval and predict" in capsys.readouterr().err


def test_suggested_commands_name_the_code_to_trust():
    assert code_arguments(["model=mlp"]) == []
    assert code_arguments(["--config-dir", "conf", "model=mine"]) == ["--config-dir", "conf"]
    assert code_arguments(["model._target_=own.Net", "model.x=1"]) == ["model._target_=own.Net"]
    assert code_arguments(["+callback.own={_target_:own.Own}", "+callback.b._target_=own.B"]) == []
    assert code_arguments(["optimizer._target_=own.SGD", "model._target_=own.Net"]) == ["--trust-code"]
    assert code_arguments(["hydra.searchpath=[file://x]"]) == ["--trust-code"]
