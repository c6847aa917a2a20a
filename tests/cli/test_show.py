"""Flags that show instead of running, `explain`, and completion in a real shell."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from mxtrain import __version__
from mxtrain.cli.commands import COMMANDS
from mxtrain.composing.composer import Composer

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "own_code"


def shows(mxtrain, *arguments: str, **environ: str) -> str:
    """Standard output of a command that imports no MXNet and writes nothing."""
    before = sorted(mxtrain.folder.rglob("*"))
    done = mxtrain(*arguments, **environ)
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(mxtrain.folder.rglob("*")) == before
    return done.stdout


@pytest.mark.slow
def test_help_lists_every_command_group_and_option(mxtrain) -> None:
    text = shows(mxtrain, "--help")
    assert all(re.search(rf"^  {command}\b", text, re.MULTILINE) for command in COMMANDS)
    with Composer() as composer:
        for group in composer.groups():
            entry = re.search(rf"^  {group}  .*(\n   {{10}}.*)*", text, re.MULTILINE)[0]
            assert set(composer.options(group)) <= set(entry.replace("*", " ").split())
    assert "digits*" in text and "cifar10*" not in text
    assert max(map(len, text.splitlines())) <= 120


@pytest.mark.slow
@pytest.mark.parametrize("command", ["eval", "predict", "explain", "doctor"])
def test_each_command_shows_its_usage(mxtrain, command: str) -> None:
    text = shows(mxtrain, command, "--help")
    assert text.startswith("usage: ") and command in text.splitlines()[0]


@pytest.mark.slow
def test_help_of_eval_lists_its_settings(mxtrain) -> None:
    text = shows(mxtrain, "eval", "--help")
    assert "split=auto" in text and "which=best" in text and "test if there is one" in text


def test_version(mxtrain) -> None:
    assert shows(mxtrain, "model=lenet", "--version") == f"mxtrain {__version__}\n"


@pytest.mark.slow
def test_cfg_package_and_resolve(mxtrain) -> None:
    job = yaml.safe_load(shows(mxtrain, "--cfg", "job", "optimizer.lr=0.5", "dataset=cifar10"))
    assert job["optimizer"]["lr"] == 0.5 and "hydra" not in job
    assert job["dataset"]["root"].startswith("${")
    resolved = shows(mxtrain, "dataset=cifar10", "--cfg", "job", "--resolve", "-p", "dataset", MXTRAIN_DATA="/d")
    assert yaml.safe_load(resolved)["root"] == "/d/cifar10"
    assert "hydra" in yaml.safe_load(shows(mxtrain, "--cfg", "all")) and "mode" in shows(mxtrain, "-c", "hydra")


@pytest.mark.slow
def test_settings_absent_from_yaml_need_no_plus(mxtrain) -> None:
    text = shows(
        mxtrain, "model.name=resnet18_v1", "model.options.thumbnail=true", "--cfg", "job", "-p", "model.options"
    )
    assert yaml.safe_load(text) == {"thumbnail": True}


@pytest.mark.slow
@pytest.mark.parametrize("flag", ["--info", "--info=defaults", "--info=searchpath", "--hydra-help"])
def test_hydra_config_views_work(mxtrain, flag: str) -> None:
    assert len(shows(mxtrain, flag).splitlines()) > 5


# explain


def explained(capsys: pytest.CaptureFixture, *arguments: str) -> str:
    from mxtrain.cli import main

    assert main(["explain", *arguments]) == 0
    return capsys.readouterr().out


@pytest.mark.slow
def test_explain_shows_origin_and_overridden_values(capsys) -> None:
    text = explained(capsys, "optimizer.lr", "experiment=cifar10_resnet20", "optimizer.lr=0.5")
    assert text.startswith("optimizer.lr = 0.5\n") and "command line: optimizer.lr=0.5" in text
    lines = text.splitlines()
    assert re.search(r"overrides .*conf/experiment/cifar10_resnet20\.yaml:\d+: 0.1", lines[-2])
    assert re.search(r"overrides the default of NAG \(.*mxtrain/optimizer/\w+\.py:\d+\): 0.1", lines[-1])


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments, parts",
    [
        (
            "model",
            [
                "model=lenet (",
                "it can be: actor_critic, bert, bilstm, ",
                "model.channels = [32, 64]",
            ],
        ),
        ("model.channels", ["model.channels = [32, 64]", "the default of LeNet (", "vision/classification/lenet.py:"]),
        ("dataset.augment", ["dataset.augment.flip = false", "dataset.augment.crop_scale = [1.0, 1.0]"]),
        ("dataset.augment.flip dataset.augment.flip=true", ["= true", "overrides", "settings.py:", ": false"]),
        ("logger", ["logger=default", "logger.console.refresh_s"]),
        ("logger.console.show_config", ["= true", "meaning   Prints the configuration", "logger/console.py:"]),
        ("metric metric=[f1,accuracy]", ["metric=[f1, accuracy]"]),
        (
            "trainer.max_epochs debug=fast",
            ["= 1", "conf/debug/fast.yaml:", "the default of Trainer (mxtrain/training/spec.py:"],
        ),
        ("dataset.root dataset=cifar10", ["oc.env:MXTRAIN_DATA"]),
        ("experiment", ["experiment=null", "cifar10_resnet20"]),
        ("hydra.run.dir", ["conf/config.yaml:"]),
        ("dataset.augment.mixup", ["meaning   Alpha of the Beta distribution that blends two images"]),
        (
            "optimizer.lr optimizer=sgd dataset.batch_size=32 trainer.reference_batch_size=256",
            ["optimizer.lr = 0.1\n", "used      learning rate scaled from 0.1 (batch size 256) to 0.0125 (32"],
        ),
        ("early_stopping.patience", ["meaning", "the default of EarlyStopping ("]),
    ],
)
def test_explain(capsys, arguments: str, parts: list) -> None:
    text = explained(capsys, *arguments.split())
    assert [part for part in parts if part not in text] == [], text


@pytest.mark.slow
def test_explain_shows_no_used_value_for_an_unscaled_rate(capsys) -> None:
    scaled = ("trainer.reference_batch_size=256", "lr_scheduler.warmup=2")
    for arguments in (
        ("optimizer.lr",),
        ("lr_scheduler.warmup", *scaled),
        ("optimizer.wd", *scaled),
        ("optimizer.lr", *scaled, "optimizer=adadelta"),
    ):
        assert "used" not in explained(capsys, *arguments)
    in_steps = explained(capsys, "lr_scheduler.warmup", *scaled, "lr_scheduler.unit=steps")
    assert "used" in in_steps and "warm-up 2 -> 8 steps" in in_steps


@pytest.mark.slow
def test_explain_composes_once_for_all_settings_of_a_group(capsys, monkeypatch) -> None:
    from hydra._internal.config_loader_impl import ConfigLoaderImpl

    lists: list = []
    original = ConfigLoaderImpl.compute_defaults_list
    counted = lambda *given, **named: lists.append(1) or original(*given, **named)  # noqa: E731
    monkeypatch.setattr(ConfigLoaderImpl, "compute_defaults_list", counted)
    assert "trainer.seed" in explained(capsys, "trainer")
    assert len(lists) == 1


@pytest.mark.slow
def test_explain_finds_the_users_own_files(mxtrain) -> None:
    shutil.copy(EXAMPLE / "shapes.py", mxtrain.folder)
    conf = str(EXAMPLE / "conf")
    text = shows(
        mxtrain, "--config-dir", conf, "explain", "dataset.size", "experiment=shapes", PYTHONDONTWRITEBYTECODE="1"
    )
    assert "dataset.size = 16" in text and "conf/dataset/shapes.yaml:3" in text and "Side of an image in pixels" in text
    assert (
        "shapes"
        in re.search(r"^  dataset .*(\n {6,}.*)*", shows(mxtrain, "--config-dir", conf, "--help"), re.MULTILINE)[0]
    )


# Completion


COMPLETED = [
    ("mxtrain ", {"eval", "explain", "model=", "trainer."}, set()),
    ("mxtrain ex", {"explain", "experiment="}, {"eval"}),
    ("mxtrain model=le", {"model=lenet"}, {"model=mlp"}),
    ("mxtrain trainer.max_e", {"trainer.max_epochs="}, set()),
    ("mxtrain model=mlp model.hid", {"model.hidden."}, set()),
    ("mxtrain explain optimizer.l", {"optimizer.lr="}, {"eval"}),
    ("mxtrain data ", {"check"}, {"eval", "model="}),
    ("mxtrain data check dataset=dig", {"dataset=digits"}, {"check"}),
    ("scripts/train model=le", {"model=lenet"}, {"model=mlp"}),
    ("scripts/train ex", {"explain", "experiment="}, {"eval"}),
]


@pytest.mark.slow
def test_bash_completes(tmp_path: Path) -> None:
    script = tmp_path / "mxtrain"
    root = Path(__file__).resolve().parents[2]
    script.write_text(
        f"#!{sys.executable}\nimport sys\nsys.path.insert(0, {str(root)!r})\n"
        "from mxtrain.cli import main\nsys.exit(main())\n"
    )
    script.chmod(0o755)
    train = tmp_path / "scripts/train"
    train.parent.mkdir()
    train.write_text(f'#!/bin/sh\nMXTRAIN_STARTED_BY="$0" PYTHONPATH={root} exec {sys.executable} -m mxtrain "$@"\n')
    train.chmod(0o755)
    bash = f"""
        export PATH={tmp_path}:$PATH
        eval "$(scripts/train --shell-completion install=bash)"
        for name in mxtrain scripts/train {train}; do
            complete -p $name | grep -q hydra_bash_completion || echo "$name is not completed" >&2
        done
    """
    for line, *_ in COMPLETED:
        bash += f"""
        COMP_LINE={line!r} COMP_POINT={len(line)} COMP_WORDS=({line}) COMP_CWORD={len(line.split(" ")) - 1}
        hydra_bash_completion
        printf '%s ' "${{COMPREPLY[@]}}"
        echo
        """
    done = subprocess.run(["bash", "-c", bash], capture_output=True, text=True, timeout=120, check=True, cwd=tmp_path)
    shown = done.stdout.splitlines()
    assert len(shown) == len(COMPLETED) and done.stderr == "", (done.stdout, done.stderr)
    for (line, wanted, unwanted), words in zip(COMPLETED, shown):
        found = set(words.split())
        assert wanted <= found and not unwanted & found, (line, words)
