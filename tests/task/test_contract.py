"""Every task of conf/task: what it is joined to, what it computes, shows and writes; and which tasks are refused."""

from __future__ import annotations

import importlib
import json
import math
import os
import signal
from pathlib import Path
from typing import Any, ClassVar, Dict, Tuple

import numpy as np
import pytest
import running
import yaml
from tiers import rest_in_zoo

from mxtrain.checkpoint import open_checkpoint
from mxtrain.cli.dispatch import run
from mxtrain.composing.composer import Composer
from mxtrain.data.spec import open_splits
from mxtrain.engine.predictions import to_host
from mxtrain.errors import ConfigError
from mxtrain.parallel.stage import as_list
from mxtrain.task.fit import learned_target_of
from mxtrain.task.spec import Task
from mxtrain.training.loaders import build_loader
from mxtrain.training.restored_run import RestoredRun
from mxtrain.training.verification import verify
from mxtrain.types.kinds import Images
from mxtrain.workflows.eval_folder import write_artifacts
from mxtrain.workflows.predict import decoded_arrays

CONF = Path(__file__).resolve().parents[2] / "conf"
TASKS = sorted(path.stem for path in (CONF / "task").glob("*.yaml"))
NETWORKS = ("faster_rcnn", "mask_rcnn", "q_network", "soft_actor_critic")
"""Networks beside the default of their task, which learn from samples that no dataset has: from proposals of their own,
or from a replay buffer."""
REPLAY = (
    "task=reinforcement_learning",
    "dataset.num_envs=4",
    "dataset.rollout_steps=4",
    "dataset.passes=1",
    "dataset.val_episodes=10",
    "dataset.test_episodes=5",
    "dataset.eval_batch_size=5",
    "dataset.max_episode_steps=30",
    "dataset.normalize_rewards=true",
    "model.normalize_observations=true",
    "model.hidden=[8]",
    "loss.learning_starts=40",
    "loss.buffer_size=60",
)
BERT = (
    "model.num_layers=1",
    "model.units=16",
    "model.hidden_size=32",
    "model.num_heads=2",
    "dataset.max_length=16",
    "dataset.vocab_size=400",
)
SCENES = (
    "dataset.image_size=[16,16]",
    "dataset.digit_size=[8,12]",
    "dataset.num_train=32",
    "dataset.num_val=10",
    "model.channels=[8,16]",
    "model.width=8",
)
REGIONS = (
    "model.backbone=mobilenet0.25",
    "model.channels=8",
    "model.head_units=32",
    "model.region_samples=16",
    "model.proposals=60",
    "model.regions=20",
    "dataset.image_size=[64,64]",
    "dataset.num_train=32",
    "dataset.num_val=10",
)
MASKED_REGIONS = ("model.mask_channels=8", "model.mask_convs=1", "model.max_detections=5")
RUNNING = (
    "dataset.max_length=8",
    "dataset.vocab_size=300",
    "model.units=16",
    "model.hidden_size=24",
    "model.num_layers=2",
    "dataset.val_fraction=0.4",
    "task.new_tokens=4",
    "model.hidden_dropout=0.2",
    "model.weight_dropout=0.2",
    "model.embedding_dropout=0.1",
)
PLACEMENTS = (
    ("parallel=data",),
    ("parallel=pipeline", "parallel.microbatches=2"),
    ("parallel=hybrid", "parallel.microbatches=2", "parallel.recompute=auto", "trainer.grad_accumulation=2"),
)
DYING = """
import os, signal
from mxtrain.callback.protocol import Callback

class Dying(Callback):
    def on_checkpoint(self, step):
        if step == 6:
            os.kill(os.getpid(), signal.SIGKILL)
"""
ONE_EPOCH = (
    "trainer.max_epochs=1",
    "trainer.limit_train_batches=2",
    "trainer.limit_val_batches=1",
    "trainer.limit_test_batches=1",
    "dataset.batch_size=4",
    "dataset.eval_batch_size=5",
)

pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture
def small(tmp_path: Path) -> Dict[str, Tuple[str, ...]]:
    """By task: what makes its defaults small; and by network: the words of a small one."""
    text = tmp_path / "text.txt"
    text.write_text("\n\n".join(["one two three four five six seven eight nine"] * 100))
    words = [f"w{number}" for number in range(20)]
    lines = [
        [
            (words[(row * 7 + place * 3) % 20], f"{'B' if place % 2 else 'I'}-X" if place % 3 else "O")
            for place in range(9)
        ]
        for row in range(60)
    ]
    columns = "\n\n".join("\n".join(f"{word} {tag}" for word, tag in line) for line in lines)
    (tmp_path / "train.txt").write_text(columns)
    paragraphs = [
        {
            "context": f"one {words[row % 20]} two three four five six seven eight nine ten eleven twelve {row}",
            "qas": [{"id": str(row), "question": "one", "answers": [{"text": words[row % 20], "answer_start": 4}]}],
        }
        for row in range(60)
    ]
    (tmp_path / "train.json").write_text(json.dumps({"data": [{"paragraphs": paragraphs}]}))
    held_out = ("dataset.val=null", "dataset.test=null", "dataset.val_fraction=0.4")
    tiny = ("model.units=8", "model.embed_size=8", "dataset.vocab_size=100", "dataset.max_length=12", *held_out)
    for language, name in (("en", "one"), ("de", "eins")):
        pairs = [f"{name} {' '.join(words[(row * 7) % 20 :][: row % 4 + 1])}" for row in range(80)]
        (tmp_path / f"pairs.{language}").write_text("\n".join(pairs) + "\n")
    pairs = [f"u{user},i{(user * 5 + place * place) % 20}" for user in range(40) for place in range(6)]
    (tmp_path / "interactions.csv").write_text("\n".join(["user,item", *pairs]) + "\n")
    return {
        "recommendation": (
            "dataset=interactions",
            f"dataset.path={tmp_path}/interactions.csv",
            "dataset.sampled_negatives=5",
            "dataset.max_history=3",
            "model.units=8",
            "model.dropout=0.2",
        ),
        "sequential_recommendation": (
            "dataset.num_users=24",
            "dataset.num_items=20",
            "dataset.length=[4,9]",
            "model.units=8",
            "model.hidden_size=12",
        ),
        "translation": (
            "dataset=parallel_text",
            f"dataset.train={tmp_path}/pairs",
            "dataset.vocab_size=300",
            "model.units=16",
            "model.hidden_size=24",
            "model.num_heads=2",
            "model.num_layers=1",
            "model.dropout=0.1",
            "dataset.batch_tokens=null",
            "dataset.val_fraction=0.4",
            "task.max_length_offset=2",
            "task.beam_size=2",
        ),
        "summarization": (
            "dataset.num_train=32",
            "dataset.num_val=10",
            "dataset.num_test=0",
            "dataset.vocab_size=100",
            "dataset.max_length=24",
            "dataset.max_summary_length=12",
            "model.units=16",
            "model.hidden_size=24",
            "model.num_heads=2",
            "model.num_layers=1",
            "model.dropout=0.1",
            "task.max_length_offset=4",
            "task.beam_size=2",
        ),
        "forecasting": ("dataset.context=24", "dataset.horizon=3", "model.units=8", "model.num_layers=2"),
        "multi_label": ("dataset.num_train=32", "dataset.num_val=10", "model.channels=[4]", "model.hidden=8"),
        "masked_language_modeling": (*BERT, f"dataset.train={text}"),
        "segmentation": SCENES,
        "detection": SCENES,
        "language_modeling": (*RUNNING, f"dataset.train={text}"),
        "pose_estimation": SCENES,
        "instance_segmentation": (*SCENES, "model.prototypes=4"),
        "faster_rcnn": ("model.name=faster_rcnn_fpn_custom", *REGIONS),
        "mask_rcnn": ("model.name=mask_rcnn_fpn_custom", *REGIONS, *MASKED_REGIONS),
        "q_network": ("model=q_network", "loss.epsilon_steps=90", "loss.target_interval=3", *REPLAY),
        "soft_actor_critic": ("model=soft_actor_critic", "model.initial_temperature=0.5", *REPLAY),
        "token_classification": (f"dataset.root={tmp_path}", "dataset.repair_tags=true", *tiny),
        "question_answering": (
            f"dataset.root={tmp_path}",
            "dataset.train=train.json",
            "dataset.max_question=3",
            "dataset.doc_stride=4",
            *tiny,
        ),
        "speech_synthesis": (
            "dataset.num_train=32",
            "dataset.num_val=10",
            "dataset.length=[1,2]",
            "dataset.features.sample_rate=4000",
            "dataset.features.window_ms=200",
            "dataset.features.step_ms=50",
            "dataset.features.num_mels=16",
            "model.units=8",
            "model.hidden_size=12",
            "task.iterations=2",
        ),
        "reinforcement_learning": (
            "dataset.num_envs=4",
            "dataset.rollout_steps=8",
            "dataset.val_episodes=10",
            "dataset.test_episodes=5",
            "dataset.eval_batch_size=5",
            "dataset.normalize_rewards=true",
            "model.normalize_observations=true",
            "dataset.batch_size=8",
            "model.hidden=[8]",
        ),
        "speech_recognition": (
            "dataset.num_train=32",
            "dataset.num_val=10",
            "dataset.length=[1,3]",
            "dataset.height=8",
            "model.channels=[2,3,2]",
            "model.units=8",
            "model.num_layers=2",
        ),
    }


def class_of(file: Path) -> Any:
    """The class that an option of conf/ names."""
    content = yaml.safe_load(file.read_text(encoding="utf-8"))
    if "_target_" not in content:  # it stands under its group's name, or is one of a group of many, under its own
        content = content.get(file.parent.name) or next(iter(content.values()))
    module, _, name = content["_target_"].rpartition(".")
    return getattr(importlib.import_module(module), name)


@pytest.mark.zoo
@pytest.mark.parametrize("name", TASKS)
def test_task_alone_is_a_complete_description(describe_run: Any, name: str) -> None:
    description = describe_run(f"task={name}")
    task = description.task
    assert isinstance(task, Task) and task.name == name
    target = learned_target_of(task, description.dataset)
    assert target is not None and description.model.takes.takes_sample(description.dataset.gives.sample)
    for part in (description.model, description.loss, *description.metric.values()):
        assert part.takes.takes_target(target)


@pytest.mark.slow
@pytest.mark.parametrize("name", rest_in_zoo([*TASKS, "q_network", "soft_actor_critic"], *TASKS))
def test_a_task_trains_its_parts_fit_and_its_run_is_evaluated(
    train_run: Any, describe_run: Any, small: Any, tmp_path: Path, capsys: Any, name: str
) -> None:
    words = (*overrides_of(small, name), *ONE_EPOCH)
    made, result = train_run(*words)
    assert result.exit_code == 0 and math.isfinite(result.metrics["val/loss"])
    description = describe_run(*words)
    task, checkpoint = description.task, open_checkpoint(str(tmp_path / "run"))
    assert made.info.predicts == task.predicts
    restored = RestoredRun.of(checkpoint, description)
    dataset, signature = restored.dataset, restored.signature
    trained = restored.load()
    splits = open_splits(dataset)
    loader = build_loader(description, splits.val, signature, trained.device, limit_batches=2)
    report = task.build_report(description, signature, splits.val)
    loss = task.build_loss(description, signature, training=False)
    decode = trained.evaluator.decode
    assert decode is not None
    for batch, outputs in trained.evaluator.predict(loader):
        assert len(outputs) == len(task.output_shapes(description, signature))
        for output, shape in zip(outputs, task.output_shapes(description, signature)):
            # A batch of short texts has fewer positions than the shape says.
            assert output.shape[0] == 5 and len(output.shape) == 1 + len(shape)
            assert output.shape[-1] == shape[-1] or name == "translation", "there the last axis are positions"
            assert all(size <= most for size, most in zip(output.shape[1:], shape))
        assert all(len(target) == 5 for target in batch.targets)
        losses = as_list(loss(*outputs, *batch.targets))
        assert [one.shape for one in losses] == [(5,)] * (1 + getattr(loss, "weighted", False))
        assert len(decode(outputs, batch)) == 5
        report.update(batch, outputs)
    write_artifacts(report.artifacts("val, step 2"), tmp_path / "shown")
    try:
        task.check_explained(description)
    except ConfigError as error:
        assert str(error).startswith("explain: ") and not issubclass(description.dataset.gives.sample, Images)
    else:
        explained = task.explained(description, signature, outputs, batch)
        assert explained.score(outputs).shape == (5,)
        assert len(explained.true) == len(explained.predicted) == len(explained.probability_B) == 5
    if task.predicts:
        if name != "language_modeling":  # `predict` continues texts, of which `eval` measures windows
            require_equal_predictions(trained, splits.val, loader)
        row = task.row(signature, decode(outputs, batch)[0].asnumpy(), 2)
        assert json.loads(json.dumps(row)) == row and "file" not in row
        assert all(not isinstance(cell, (dict, list)) for cell in task.prediction_format().cells(row).values())
    samples = made.runner.context.data.samples
    assert (samples is not None) == task.can_show(description)
    if samples is not None:
        write_artifacts(samples.artifacts(trained.evaluator), tmp_path / "samples")
        assert len(list((tmp_path / "samples").iterdir())) > 0
    require_evaluated_and_predicted(made, tmp_path, capsys, task.name)


def require_equal_predictions(trained: Any, source: Any, loader: Any) -> None:
    """Requires that `eval` measures the predictions of `predict`, in the order of its files and in other batches."""
    decode, evaluator = trained.evaluator.decode, trained.evaluator
    measured = {
        int(index): prediction
        for batch, outputs in evaluator.predict(loader)
        for index, prediction in zip(batch.index_B, to_host(decode(outputs, batch)))
    }
    in_order = build_loader(
        trained.description,
        source,
        trained.signature,
        trained.device,
        batch_size=3,
        in_order=True,
        limit_batches=4,
        prefetch=0,
    )
    predicted = dict(enumerate(decoded_arrays(trained, in_order)))
    assert len(predicted) >= 5 and len(set(measured) & set(predicted)) >= 3
    for index in set(measured) & set(predicted):
        rows = [trained.description.task.row(trained.signature, one[index], 2) for one in (measured, predicted)]
        require_close(*rows)


def require_evaluated_and_predicted(made: Any, tmp_path: Path, capsys: Any, name: str) -> None:
    """Requires that `eval` measures the run, and that `predict` predicts, or says what to type instead."""
    assert run(["eval", str(tmp_path / "run"), "split=val", "limit_batches=1"]) == 0
    found = json.loads((tmp_path / "run" / "eval" / "val" / "metrics.json").read_text())
    assert found["samples"] == 5 and set(made.info.metric_names) <= set(found)
    capsys.readouterr()
    if made.info.predicts:
        takes_files = made.info.predict_inputs == "FILE..."
        assert run(["predict", str(tmp_path / "run"), "sample=2"]) == (0 if takes_files else 2)
        said = capsys.readouterr()
        if takes_files:
            rows = [json.loads(line) for line in said.out.splitlines()]
            assert len(rows) == len({row["file"] for row in rows}) == 2 and all(len(row) > 1 for row in rows)
        else:
            assert f"sample= is for tasks that predict for files. For task={name} type `" in said.err
    else:
        assert run(["predict", str(tmp_path / "run"), str(CONF / "config.yaml")]) == 2
        said = capsys.readouterr().err
        assert said == f"error: predict: a run of task={name} has nothing to say of single files. `eval` measures it.\n"


def require_close(one: Any, other: Any) -> None:
    """The same, but for the last digits of numbers."""
    assert type(one) is type(other)
    if isinstance(one, dict):
        assert list(one) == list(other)
        for name in one:
            require_close(one[name], other[name])
    elif isinstance(one, list):
        assert len(one) == len(other)
        for pair in zip(one, other):
            require_close(*pair)
    else:
        assert one == (pytest.approx(other, rel=1e-3, abs=1e-4) if isinstance(one, float) else other)


@pytest.mark.zoo_except("classification", "recommendation", "reinforcement_learning", "tabular")
@pytest.mark.slow
@pytest.mark.parametrize("name", [*TASKS, "q_network", "soft_actor_critic"])
def test_a_task_is_the_same_under_every_placement(describe_run: Any, small: Any, name: str) -> None:
    for placement in PLACEMENTS:
        found = verify(describe_run(*overrides_of(small, name), "dataset.batch_size=8", *placement), 2, 1e-5)
        assert found.passed, (placement, found)


def overrides_of(small: Any, name: str) -> Tuple[str, ...]:
    """The words of a small run of a task, or of a network, which means its task."""
    return (*(() if name in NETWORKS else (f"task={name}",)), *small.get(name, ()))


@pytest.mark.zoo
@pytest.mark.slow
@pytest.mark.parametrize("name", rest_in_zoo([*TASKS, *NETWORKS], "recommendation", "translation"))
def test_a_task_is_the_same_with_two_workers(small: Any, name: str) -> None:
    words = (*overrides_of(small, name), "dataset.batch_size=8", "kvstore=dist_sync", "cluster.workers=2")
    found = running.verify(*words, "steps=2")
    assert found.returncode == 0, found.stdout + found.stderr


@pytest.mark.zoo_cases("translation")
@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    rest_in_zoo([*TASKS, *NETWORKS], "detection", "q_network", "translation"),
)
def test_a_killed_task_continues_with_the_same_bits(train_run: Any, small: Any, tmp_path: Path, name: str) -> None:
    words = (
        *overrides_of(small, name),
        "dataset.batch_size=8",
        "trainer.max_epochs=2",
        "trainer.log_interval=1",
        "trainer.limit_train_batches=4",
        "trainer.limit_val_batches=1",
        "checkpoint.every_steps=3",
    )
    _, unbroken = train_run(*words, run_dir=tmp_path / "unbroken")
    (tmp_path / "dying.py").write_text(DYING)
    dying = ("+callback.dying._target_=dying.Dying",)
    env = {"PYTHONPATH": f"{tmp_path}{os.pathsep}{running.ROOT}"}
    running.Process(tmp_path / "run", *words, *dying, env=env).end(-signal.SIGKILL)
    made, resumed = train_run(*words, "checkpoint.resume=auto")
    assert made.info.resumed_step in (3, 4), "step 4 may not have been on the disk yet"
    assert resumed.step == unbroken.step == 8
    assert resumed.weights_sha256 == unbroken.weights_sha256 and resumed.metrics == unbroken.metrics
    rows = [(tmp_path / folder / "metrics.jsonl").read_text().splitlines() for folder in ("unbroken", "run")]
    assert [strip(row) for row in rows[0]] == [strip(row) for row in rows[1]]


def strip(line: str) -> Any:
    """A row of metrics.jsonl without what differs from run to run."""
    return {name: value for name, value in json.loads(line).items() if name != "samples_per_s"}


@pytest.mark.zoo_except(
    "-classification-Digits",
    "dataset=squad model=bert-question_answering-Squad",
    "model=neumf-recommendation-ImportedNames",
    "dataset=number_table-regression-NumberTable",
    "model=centernet_fpn-detection-BoxedDigitScenes",
    "dataset=face_record-metric_learning-FaceRecord",
    "model=transformer-translation-NumberAndDatePhrases",
)
@pytest.mark.slow
@pytest.mark.parametrize(
    "words, task, dataset",
    [
        ("", "classification", "Digits"),
        pytest.param("dataset=masked_text", "masked_language_modeling", "MaskedText", marks=pytest.mark.zoo),
        pytest.param("model=bert", "classification", "Text", marks=pytest.mark.zoo),
        ("model=bilstm", "token_classification", "Conll"),
        pytest.param("dataset=conll model=bert", "token_classification", "Conll", marks=pytest.mark.zoo),
        ("dataset=squad model=bert", "question_answering", "Squad"),
        ("model=bert dataset=masked_text", "masked_language_modeling", "MaskedText"),
        pytest.param("dataset=masked_text model=bert", "masked_language_modeling", "MaskedText", marks=pytest.mark.zoo),
        pytest.param("model.name=resnet18_v1", "classification", "Digits", marks=pytest.mark.zoo),
        pytest.param("model.name=fcn_resnet50_ade", "segmentation", "DigitScenes", marks=pytest.mark.zoo),
        pytest.param("task=segmentation model.name=fastscnn", "segmentation", "DigitScenes", marks=pytest.mark.zoo),
        pytest.param("model.name=ssd_300_vgg16_atrous_voc", "detection", "BoxedDigitScenes", marks=pytest.mark.zoo),
        pytest.param("model.name=yolo3_darknet53", "detection", "BoxedDigitScenes", marks=pytest.mark.zoo),
        pytest.param("model=gluoncv_centernet", "detection", "BoxedDigitScenes", marks=pytest.mark.zoo),
        pytest.param(
            "task=masked_language_modeling dataset.mask_fraction=0.2",
            "masked_language_modeling",
            "MaskedText",
            marks=pytest.mark.zoo,
        ),
        ("task=speech_recognition", "speech_recognition", "DigitLines"),
        pytest.param("dataset=digit_lines", "speech_recognition", "DigitLines", marks=pytest.mark.zoo),
        pytest.param("model=deep_speech2", "speech_recognition", "DigitLines", marks=pytest.mark.zoo),
        ("task=speech_synthesis", "speech_synthesis", "FormantDigits"),
        pytest.param("model=fastspeech", "speech_synthesis", "FormantDigits", marks=pytest.mark.zoo),
        pytest.param("task=recommendation", "recommendation", "ImportedNames", marks=pytest.mark.zoo),
        pytest.param("dataset=movielens", "recommendation", "MovieLens", marks=pytest.mark.zoo),
        pytest.param("dataset=interactions", "recommendation", "InteractionTable", marks=pytest.mark.zoo),
        ("model=neumf", "recommendation", "ImportedNames"),
        ("model=gru4rec", "sequential_recommendation", "ItemSequences"),
        pytest.param("dataset=item_sequences", "sequential_recommendation", "ItemSequences", marks=pytest.mark.zoo),
        ("dataset=number_table", "regression", "NumberTable"),
        ("task=tabular", "tabular", "BreastCancer"),
        ("model=tcn", "forecasting", "SeriesTable"),
        pytest.param("model=n_beats", "forecasting", "SeriesTable", marks=pytest.mark.zoo),
        pytest.param("dataset=deepar_lines", "forecasting", "DeepARLines", marks=pytest.mark.zoo),
        pytest.param("dataset=criteo", "tabular", "Criteo", marks=pytest.mark.zoo),
        pytest.param("dataset=libsvm", "tabular", "Libsvm", marks=pytest.mark.zoo),
        pytest.param("task=tabular dataset=libsvm model.units=0", "tabular", "Libsvm", marks=pytest.mark.zoo),
        pytest.param("model=deepfm", "tabular", "BreastCancer", marks=pytest.mark.zoo),
        pytest.param("task=regression", "regression", "NumericFeatureTable", marks=pytest.mark.zoo),
        pytest.param("task=segmentation", "segmentation", "DigitScenes", marks=pytest.mark.zoo),
        pytest.param("dataset=digit_scenes", "segmentation", "DigitScenes", marks=pytest.mark.zoo),
        ("model=fpn", "segmentation", "DigitScenes"),
        pytest.param("task=detection", "detection", "BoxedDigitScenes", marks=pytest.mark.zoo),
        ("model=centernet_fpn", "detection", "BoxedDigitScenes"),
        pytest.param(
            "task=instance_segmentation", "instance_segmentation", "InstanceDigitScenes", marks=pytest.mark.zoo
        ),
        ("model=yolact", "instance_segmentation", "InstanceDigitScenes"),
        pytest.param(
            "model.name=mask_rcnn_fpn_resnet50_v1b_coco",
            "instance_segmentation",
            "InstanceDigitScenes",
            marks=pytest.mark.zoo,
        ),
        pytest.param("task=pose_estimation", "pose_estimation", "DigitKeyPoints", marks=pytest.mark.zoo),
        ("dataset=digit_key_points", "pose_estimation", "DigitKeyPoints"),
        ("dataset=face_record", "metric_learning", "FaceRecord"),
        pytest.param("task=metric_learning", "metric_learning", "Digits", marks=pytest.mark.zoo),
        pytest.param("task=language_modeling", "language_modeling", "PlainText", marks=pytest.mark.zoo),
        ("dataset=plain_text", "language_modeling", "PlainText"),
        pytest.param("model=lstm", "language_modeling", "PlainText", marks=pytest.mark.zoo),
        pytest.param("task=translation", "translation", "NumberAndDatePhrases", marks=pytest.mark.zoo),
        pytest.param("dataset=parallel_text dataset.train=x", "translation", "ParallelText", marks=pytest.mark.zoo),
        pytest.param("dataset=number_and_date_phrases", "translation", "NumberAndDatePhrases", marks=pytest.mark.zoo),
        ("model=transformer", "translation", "NumberAndDatePhrases"),
        pytest.param("model=gnmt", "translation", "NumberAndDatePhrases", marks=pytest.mark.zoo),
        pytest.param("model=pose_fpn", "pose_estimation", "DigitKeyPoints", marks=pytest.mark.zoo),
        pytest.param(
            "model.name=simple_pose_resnet50_v1d_coco", "pose_estimation", "DigitKeyPoints", marks=pytest.mark.zoo
        ),
    ],
)
def test_dataset_or_model_alone_selects_its_task(describe_run: Any, words: str, task: str, dataset: str) -> None:
    description = describe_run(*words.split())
    assert (description.task.name, type(description.dataset).__name__) == (task, dataset)


@pytest.mark.slow
@pytest.mark.parametrize(
    "words, said",
    [
        ("dataset=libsvm dataset.train=x model=wide_deep", "Type model=factorization_machine, or a dataset of feat"),
        ("task=classification dataset=masked_text", "its samples are for task=masked_language_modeling. Type that."),
        (
            "task=masked_language_modeling dataset=digits",
            "its samples are for task=classification or task=metric_learning. Type that.",
        ),
        (
            "task=masked_language_modeling model=bert dataset=text",
            "task=classification, task=multi_label or task=regression. Type that.",
        ),
        (
            "task=tabular dataset=number_table dataset.train=t.csv dataset.target=y",
            "Or a dataset for task=tabular: dataset=breast_cancer, dataset=criteo or dataset=feature_table.",
        ),
        (
            "task=translation dataset=text",
            ": dataset=number_and_date_phrases, dataset=match_reports, dataset=parallel_text or dataset=summary_text.",
        ),
        (
            "task=masked_language_modeling model=lenet",
            "it is for classification, metric_learning, multi_label, regression. Type model=bert.",
        ),
        (
            "model=lenet dataset=masked_text",
            "it is for classification, metric_learning, multi_label, regression. Type model=bert.",
        ),
        (
            "model=bert dataset=digits",
            "Type model=lenet, or a dataset of text, e.g. dataset=glue. Other models that f",
        ),
        ("task=masked_language_modeling loss=l2", "Type loss=masked_softmax_cross_entropy."),
        ("task=masked_language_modeling metric=[accuracy]", "Type metric=[masked_accuracy]."),
        ("loss=masked_softmax_cross_entropy", "not for task=classification. Type loss=softmax_cross_entropy."),
        ("metric=[masked_accuracy]", "not for task=classification. Type metric=[accuracy]."),
        ("task=recommendation loss=l2", "implicit means items without ratings: type loss=sampled_bce."),
        (
            "task=recommendation model=lenet",
            "it is for classification, metric_learning, multi_label, regression. Type model=fism.",
        ),
        (
            "task=recommendation metric=[root_mean_squared_error] trainer.monitor=val/root_mean_squared_error",
            "Type metric=[ndcg_at_k_sampled,hr_at_k_sampled] trainer.monitor=val/ndcg_at_k_sampled.",
        ),
        ("dataset=movielens dataset.feedback=explicit", "no sampled items: type loss=l2 metric=[root_mean_sq"),
        ("task=masked_lm", "Did you mean 'masked_language_modeling'?"),
        ("task=clasification", "Did you mean 'classification'?"),
        ("task.x=1", "there is no 'task.x'"),
        ("task._target_=mxtrain.model.mlp.MLP", "task._target_=mxtrain.model.mlp.MLP"),
        ("task._target_=mxtrain.task.spec.Task", "Task must define the method decode or build_decode."),
    ],
)
def test_misfits_are_refused_with_the_command_to_type(capsys: Any, words: str, said: str) -> None:
    assert run([*words.split(), "logger=[]"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ") and said in line


@pytest.mark.slow
@pytest.mark.parametrize(
    "swept",
    [
        "dataset=digits,masked_text",
        "dataset=masked_text,digits",
        "task=classification,masked_language_modeling",
    ],
)
def test_a_sweep_over_different_tasks_is_refused(tmp_path: Path, monkeypatch: Any, capsys: Any, swept: str) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["-m", swept, "logger=[]"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "the jobs of this sweep have different tasks: " in line and "Start one sweep per task." in line
    assert "classification" in line and "masked_language_modeling" in line and list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_the_task_of_a_swept_dataset_is_that_of_every_job(monkeypatch: Any) -> None:
    """Hydra composes the jobs itself: it has to be given the task."""
    from mxtrain.cluster.launch.sweep import overrides_for_hydra

    with Composer() as composer:
        words = ["dataset=masked_text", "dataset.batch_size=8,16"]
        first = composer.compose(["dataset=masked_text", "dataset.batch_size=8"])
        assert "task=masked_language_modeling" in overrides_for_hydra(first, composer, words)


class Learned(Task):
    """Somebody's own task, for all that a dataset gives."""

    predicts: ClassVar[bool] = False


@pytest.mark.slow
def test_a_task_of_the_users_needs_no_registration(describe_run: Any) -> None:
    with pytest.raises(ConfigError, match="not for the task Learned. Type another loss."):
        describe_run(f"task._target_={__name__}.Learned")
    description = describe_run(
        f"task._target_={__name__}.Learned",
        "loss._target_=mxnet.gluon.loss.L2Loss",
        "metric=[]",
        "trainer.monitor=val/loss",
        "early_stopping=off",
    )
    assert isinstance(description.task, Task) and type(description.task).__name__ == "Learned"
    assert description.task.show(None, None, np.zeros(1), []) == []  # type: ignore[arg-type]
