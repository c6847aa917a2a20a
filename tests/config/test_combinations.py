"""Every model builds for every task that it is made for, with the defaults of `task=X model=Y` and nothing else."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any, Callable, ClassVar, Dict, Iterator

import pytest
from omegaconf import OmegaConf

from mxtrain.composing.composer import Composer
from mxtrain.composing.environment import check
from mxtrain.config.groups import Description, build_group
from mxtrain.config.specs import import_target
from mxtrain.data.spec import Splits
from mxtrain.errors import ConfigError
from mxtrain.kvstore.world import ALONE
from mxtrain.training.build import resolve_devices
from mxtrain.training.loaders import build_loader, take
from mxtrain.training.network import build_network
from mxtrain.training.objective import build_evaluator, build_objective
from mxtrain.types.kinds import Gives, Images, Number
from mxtrain.vision.classification.digits import Digits

CONF = Path(__file__).resolve().parents[2] / "conf"


class RatedDigits(Digits):
    """Digits whose number is to be predicted, as a class of a user's own."""

    gives: ClassVar[Gives] = Gives(Images, Number)


def class_of(group: str, option: str) -> Any:
    content: Any = OmegaConf.load(CONF / group / f"{option}.yaml")
    return import_target(str(content.get("_target_") or content[group]._target_), group)


def classes(group: str) -> Dict[str, Any]:
    return {path.stem: class_of(group, path.stem) for path in sorted((CONF / group).glob("*.yaml"))}


def fits(task: str, model: Any) -> bool:
    """Returns True if a model predicts the targets of a task."""
    return any(model.takes.takes_target(kind) for kind in TASKS[task].takes.targets)


MODELS, TASKS = classes("model"), classes("task")
DECLARED = [(task, model) for task in TASKS for model, found in MODELS.items() if fits(task, found)]
# Pairs whose model cannot read the task's default dataset: the end of the error message, and overrides with a dataset
# that the model reads.
OTHER_DATA = {
    ("classification", "bilstm"): ("dataset=glue or dataset=text.", ("dataset=text",)),
    **{
        ("regression", model): (
            "a dataset of text, e.g. dataset=glue dataset.task=stsb.",
            ("dataset=glue", "dataset.task=stsb", "dataset.root={folder}"),
        )
        for model in ("bert", "bilstm")
    },
    **{
        ("regression", model): (
            "a dataset of images of your own.",
            ("dataset=digits", "dataset._target_=test_combinations.RatedDigits"),
        )
        for model in ("lenet", "resnet", "gluoncv")
    },
}


@pytest.fixture(scope="module")
def compose() -> Iterator[Callable[..., Description]]:
    with Composer() as composer:
        yield lambda *overrides: check(composer.compose(overrides))


@pytest.fixture(scope="module")
def opened() -> Dict[str, Splits]:
    """Splits by the description of their dataset: most models of a task read the same."""
    return {}


@pytest.fixture
def rated_pairs(tmp_path: Path) -> Path:
    (tmp_path / "STS-B").mkdir()
    for name in ("train", "dev"):
        rows = [f"0\tx\tx\tx\tx\tx\tx\tthe cat sat {i}\ta cat sits {i}\t{i % 6}.0" for i in range(12)]
        header = "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore"
        (tmp_path / "STS-B" / f"{name}.tsv").write_text("\n".join([header, *rows]) + "\n")
    return tmp_path


def test_every_model_declares_samples_and_targets() -> None:
    assert all(found.takes.samples and found.takes.targets for found in MODELS.values())
    assert {task for task, _ in DECLARED} == set(TASKS) and set(OTHER_DATA) <= set(DECLARED)
    assert [task.name for task in TASKS.values()] == list(TASKS)


@pytest.mark.zoo_except(
    "classification-bert",
    "detection-centernet_fpn",
    "question_answering-bilstm",
    "recommendation-matrix_factorization",
    "regression-mlp",
    "reinforcement_learning-actor_critic",
    "speech_recognition-deep_speech2",
    "tabular-wide_deep",
)
@pytest.mark.slow
@pytest.mark.parametrize("task, model", DECLARED)
def test_a_declared_combination_builds_and_is_measured(
    compose: Any, opened: Dict[str, Splits], rated_pairs: Path, task: str, model: str
) -> None:
    words = [f"task={task}", f"model={model}"]
    if (task, model) in OTHER_DATA:
        said, other = OTHER_DATA[task, model]
        with pytest.raises(ConfigError, match=re.escape(said)):
            compose(*words)
        words += [word.format(folder=rated_pairs) for word in other]
    description = compose(*words)
    key = json.dumps([task, description.config["dataset"]], sort_keys=True)
    if key not in opened:
        opened[key] = description.dataset.open()
    splits = opened[key]
    signature = description.dataset.infer_signature(splits, description.model)
    device = resolve_devices(description)[0][0]
    network = build_network(description, signature, device)
    objective = build_objective(description, network, signature)
    strategy = description.parallel.build(objective, 1, description.kvstore.build(ALONE))
    description.optimizer.build(1)
    loader = build_loader(description, take(splits.val, range(2)), signature, device, prefetch=0)
    values = build_evaluator(description, strategy, signature).measure(loader)
    assert set(values) - {"samples_per_s"} == {"loss", *description.metric} >= {description.trainer.monitor[4:]}


@pytest.mark.zoo
def test_a_combination_that_is_not_declared_names_one_that_is(compose: Any) -> None:
    """Following the advice of the message gives no further message of this kind."""
    models = {name: build_group("model", OmegaConf.to_container(made_of(name)), str) for name in MODELS}
    for task in TASKS:
        usual = compose(f"task={task}")
        for name in set(MODELS) - {model for other, model in DECLARED if other == task}:
            with pytest.raises(ConfigError) as refused:
                usual.task.check(replace(usual, model=models[name]))
            (advised,) = re.findall(r"model=(\w+)", str(refused.value))
            assert fits(task, MODELS[advised]), refused.value
            assert MODELS[advised].takes.takes_sample(usual.dataset.gives.sample), refused.value


def made_of(model: str) -> Any:
    content: Any = OmegaConf.load(CONF / "model" / f"{model}.yaml")
    content = content.get("model", content)
    content.pop("defaults", None)
    return content


@pytest.mark.zoo_cases(
    "task=reinforcement_learning lr_scheduler=constant",
    "task=reinforcement_learning lr_scheduler=step",
    "experiment=ppo_pendulum lr_scheduler=constant",
    "dataset=gymnasium lr_scheduler=inverse_sqrt",
)
@pytest.mark.slow
@pytest.mark.parametrize(
    "overrides",
    [
        *((f"task=reinforcement_learning lr_scheduler={name}") for name in ("constant", "step", "linear")),
        "experiment=ppo_pendulum lr_scheduler=constant",
        "dataset=gymnasium lr_scheduler=inverse_sqrt",
        "task=translation lr_scheduler=step",
        "task=translation optimizer=sgd",
        "task=recommendation debug=overfit",
    ],
)
def test_task_defaults_are_dropped_for_options_without_the_setting(overrides: str) -> None:
    """A setting of a task that the chosen option has not is left out; what is typed is not."""
    with Composer() as composer:
        composed = composer.compose(overrides.split())
        check(composed)
        assert composer.compose(composed.overrides).config == composed.config, "a started process composes the same"


@pytest.mark.parametrize(
    "typed, said",
    [
        ("lr_scheduler=constant lr_scheduler.end_factor=0.1", "there is no 'lr_scheduler.end_factor'"),
        ("~lr_scheduler.end_factor", "a setting cannot be taken away"),
        ("~optimizer.lr", "a setting cannot be taken away"),
        ("~optimizer.lrr", "a setting cannot be taken away"),
    ],
)
def test_typed_setting_is_kept(compose: Any, typed: str, said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        compose("task=reinforcement_learning", *typed.split())
