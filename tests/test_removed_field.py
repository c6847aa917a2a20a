"""A field can be removed: its folder and the YAML files that name its classes. All that is left works without it.

Reasons: docs/decisions/0082-one-package-per-field.md.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import List, Sequence

import pytest
from test_architecture import FIELDS, TARGET
from tiers import rest_in_zoo

ROOT = Path(__file__).resolve().parents[1]
OTHERS = {
    "vision": ["task=tabular"],
    "text": ["task=speech_recognition"],
    "speech": ["task=classification"],
    "tables": ["task=recommendation"],
    "recommendation": ["task=reinforcement_learning"],
    "reinforcement": ["task=forecasting"],
    "forecasting": ["task=question_answering"],
}
"""For each field, the smallest run of another one: each field is run by one of them."""
COMPOSE = """
import sys
from mxtrain.composing.composer import Composer
from mxtrain.composing.environment import check
for task in sys.argv[1:]:
    with Composer([]) as composer:
        assert check(composer.compose([f"task={task}"])).task.name == task
assert "mxnet" not in sys.modules
"""


def fields_of(file: Path) -> List[str]:
    """The fields whose classes a YAML file names."""
    return [name for name in TARGET.findall(file.read_text(encoding="utf-8")) if name in FIELDS]


def test_every_field_is_removed_and_run() -> None:
    assert sorted(OTHERS) == sorted(FIELDS)
    tasks = {file.stem: fields_of(file) for file in (ROOT / "conf" / "task").glob("*.yaml")}
    run = [field for (given,) in OTHERS.values() for field in tasks[given.partition("=")[2]] or ["vision"]]
    assert sorted(run) == sorted(FIELDS), "a dataset of images is what task=classification chooses"


@pytest.mark.zoo_cases("text")
@pytest.mark.slow
@pytest.mark.parametrize("field", rest_in_zoo(FIELDS, "vision", "text"))
def test_other_fields_train_after_one_is_removed(field: str, tmp_path: Path) -> None:
    for name in ("mxtrain", "conf"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.rmtree(tmp_path / "mxtrain" / field)
    removed = [file for file in (tmp_path / "conf").rglob("*.yaml") if field in fields_of(file)]
    assert removed
    for file in removed:
        file.unlink()
    config = tmp_path / "conf" / "config.yaml"
    lines = config.read_text(encoding="utf-8")
    for group, option in re.findall(r"^  - (\w+): (\w+)", lines, re.MULTILINE):
        if (tmp_path / "conf" / group).is_dir() and not (tmp_path / "conf" / group / f"{option}.yaml").is_file():
            lines = lines.replace(f"  - {group}: {option}", f"  - optional {group}: {option}")  # no default is left
    config.write_text(lines, encoding="utf-8")

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(tmp_path)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done

    other: Sequence[str] = OTHERS[field]
    tasks = [file.stem for file in sorted((tmp_path / "conf" / "task").glob("*.yaml")) if fields_of(file)]
    assert tasks
    run("-c", COMPOSE, *tasks)
    told = run("-m", "mxtrain", "--help").stdout
    assert not [file.stem for file in removed if file.parent.name == "task" and re.search(rf"\b{file.stem}\b", told)]
    run("-m", "mxtrain", *other, "debug=fast", "hydra.run.dir=run")
    run("-m", "mxtrain", "eval", "run", "limit_batches=1")
    assert json.loads((tmp_path / "run" / "status.json").read_text(encoding="utf-8"))["state"] == "finished"
