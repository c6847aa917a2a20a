"""All code that turns a file into a description calls the trust check. New call sites must be added to a list here."""

from __future__ import annotations

import ast
import functools
from pathlib import Path
from typing import Dict, List, Set

import pytest

import mxtrain
from mxtrain.config.groups import GROUPS
from mxtrain.config.placeholders import PLACEHOLDERS, Given
from mxtrain.config.specs import import_target
from mxtrain.config.trust import ADDRESSES, is_own
from mxtrain.logger.tracker import Tracker

PACKAGE = Path(mxtrain.__file__).parent
DESCRIBES = {
    "describe",
    "describe_here",
    "compose_and_check",
    "apply_overrides",
    "build_spec",
    "build_group",
    "compose",
}
"""Functions that turn words or plain settings into objects, and so import the classes that these name."""
CHECKS = {"require_trusted", "require_trusted_overrides", "read_trusted_study"}
TYPED = {
    "api/descriptions.py",
    "api/training.py",
    "api/custom_loop.py",
    "cli/train.py",
    "cli/verify.py",
    "cli/launch.py",
    "composing/explain.py",
    "cli/explain.py",
    "cli/show.py",
    "cluster/launch/scored.py",
    "cli/lr_find.py",
    "cli/plan.py",
    "cluster/launch/placement_probes.py",  # words of `plan`
    "cluster/launch/sweep.py",
    "cluster/launch/folds.py",
    "composing/objects.py",
    "composing/trackers.py",  # the tracker and its settings are typed; those of the run are only sent
    "cluster/launch/job.py",  # a job of the sweep that this process, or the launcher that it started, has composed
}
"""Modules whose words the user has typed."""
INNER = {
    "composing/environment.py",
    "composing/composer.py",
    "composing/recorded.py",
    "cluster/launch/preload.py",  # the words of a forked run, which `cli/train.py` composes
    "config/groups.py",
    "config/specs.py",
    "model/custom.py",
    "composing/config_files.py",
}
"""Modules that define these functions, or pass on what their callers have checked."""
OTHER = {
    "parallel/served_tables.py": "describe of an input of ids",
    "serving/answers.py": "describe of an answer",
    "composing/origins.py": "compose of PyYAML, a tree of nodes",
    "text/word_vectors/reading.py": "describe of a file of vectors",
    "workflows/inspect.py": "describe of weights by their names",
    "workflows/replay.py": "describe of `StepRestorer`, which checks",
    "vision/images/affine.py": "compose of matrices",
    "vision/images/transforms/lazy_image.py": "compose of matrices",
}


@functools.cache
def nodes() -> Dict[str, List[ast.AST]]:
    """The nodes of each module of the package, by its path."""
    return {
        path.relative_to(PACKAGE).as_posix(): [
            node
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if isinstance(node, (ast.Call, ast.Subscript))
        ]
        for path in sorted(PACKAGE.rglob("*.py"))
    }


def calls_of(module: str) -> Set[str]:
    calls = [node.func for node in nodes()[module] if isinstance(node, ast.Call)]
    return {getattr(function, "id", getattr(function, "attr", "")) for function in calls}


@pytest.mark.slow
def test_every_composing_module_checks_recorded_words() -> None:
    found = {name: calls for name in nodes() for calls in [calls_of(name)] if calls & DESCRIBES}
    unlisted = {name for name, calls in found.items() if not calls & CHECKS} - TYPED - INNER - set(OTHER)
    assert unlisted == set(), (
        "take the overrides through composing/untrusted_overrides.py, or list the module with its reason"
    )
    checked = {name for name, calls in found.items() if calls & CHECKS}
    assert checked == {
        "composing/restored.py",
        "composing/replayed.py",
        "composing/recorded.py",
        "composing/untrusted_overrides.py",
        "cluster/launch/automatic.py",
        "training/teacher.py",
    }


@pytest.mark.slow
def test_every_reader_of_recorded_descriptions_is_listed() -> None:
    """Keys of the files that hold them: study.json, meta.json, checkpoints, bundles, jobs.jsonl, .hydra."""
    keys = {"overrides", "flags", "argv", "description", "working_folder", "overrides.yaml"}
    only_compare_or_print = {
        "training/slimming.py",
        "training/resume.py",
        "checkpoint/run_state.py",
        "checkpoint/average.py",
        "checkpoint/soup.py",
        "cli/slim.py",
        "workflows/push.py",
        "archive/meta.py",
        "archive/compare.py",
        "archive/provenance.py",
        "cluster/launch/sweep.py",
        "cluster/launch/outcome.py",
        "tuning/trials.py",
        "composing/objects.py",
    }
    readers = set()
    for module, found in nodes().items():
        for node in found:
            key = node.slice if isinstance(node, ast.Subscript) else None
            if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "get" and node.args:
                key = node.args[0]
            if isinstance(key, ast.Constant) and key.value in keys:
                readers.add(module)
    checked = {"composing/restored.py", "composing/replayed.py", "cluster/launch/automatic.py", "training/teacher.py"}
    assert readers - only_compare_or_print - checked == set()


def test_every_tracker_text_is_an_address_or_a_name() -> None:
    """An untrusted description may name a project, but no server, database or folder."""
    names = {"experiment", "project", "entity", "workspace", "mode", "service", "package", "install"}
    found: Set[str] = set()
    for file in (PACKAGE / "logger").glob("*.py"):
        __import__(f"mxtrain.logger.{file.stem}")
    for tracker in Tracker.__subclasses__():
        if tracker.__module__.startswith("mxtrain."):
            found |= {name for name, field in tracker.model_fields.items() if "str" in str(field.annotation)}
    assert found - names == set(ADDRESSES) - {"repo"}  # of examples/trackers
    assert "logger" in GROUPS


def test_placeholders_of_objects_are_trusted_by_their_names_alone() -> None:
    """Their modules hold wrappers of a user's classes, too, which call any function."""
    for group, target in PLACEHOLDERS.items():
        assert is_own(target, group) and issubclass(import_target(target, group), (Given, GROUPS[group]))
    assert is_own("mxtrain.callback.spec.GivenAction", "callback")
    assert is_own("mxtrain.task.custom_loop.CustomLoop", "task")
    assert is_own("mxtrain.loss.given.GivenLoss", "loss"), "of runs from before the class moved"
    for target in ("mxtrain.loss.custom.CustomLoss", "mxtrain.loss.custom.Given", "mxtrain.loss.given.CustomLoss"):
        assert not is_own(target, "loss")
    assert not is_own(PLACEHOLDERS["loss"], "model")
