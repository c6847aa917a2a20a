"""Every file of conf/ composes, validates, and lists only what its class does not say."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any, Dict, Iterator, List

import pytest
from hydra.utils import get_class as locate
from omegaconf import OmegaConf

from mxtrain.callback.protocol import Callback
from mxtrain.config.groups import GROUPS, NAMED_GROUPS, PRESET_GROUPS
from mxtrain.config.options import option_classes
from mxtrain.config.specs import flatten, import_target, spec_help
from mxtrain.errors import ConfigError
from mxtrain.kvstore.spec import has_horovod
from mxtrain.runtime.amx import computes_bfloat16, cpu_flags
from mxtrain.types import Spec

CONF = Path(__file__).resolve().parents[2] / "conf"
PACKAGE = CONF.parent / "mxtrain"
FILES = sorted(path.relative_to(CONF).with_suffix("") for path in CONF.rglob("*.yaml") if path.parent != CONF)
OPTIONS = [path for path in FILES if path.parts[0] in GROUPS]
PRESETS = [path for path in FILES if path.parts[0] in PRESET_GROUPS]

SEGMENTATION = (
    "dataset/segmentation_folder",
    "dataset/voc_segmentation",
    "dataset/ade20k",
    "dataset/cityscapes",
    "loss/pixel_softmax_cross_entropy",
    "metric/mean_iou",
    "metric/mean_iou_all_classes",
    "metric/pixel_accuracy",
)
DETECTION = (
    "loss/heatmap_focal",
    "metric/voc_ap",
    "metric/voc07_ap",
    "metric/coco_ap",
    "metric/coco_ap50",
    "metric/coco_ap75",
    "metric/coco_ar",
)
TRANSLATION = (
    "loss/label_smoothed_cross_entropy",
    "dataset/parallel_text",
    "dataset/number_and_date_phrases",
    "metric/bleu",
    "metric/chrf",
)
LANGUAGE = ("loss/token_cross_entropy", "metric/token_perplexity", "metric/bits_per_byte", "dataset/plain_text")
# What an option needs from others to make sense.
NEEDS = {
    "callback/accumulation": ["callback.accumulation.schedule={0: 2}"],
    "callback/swa": ["early_stopping=off"],
    "callback/target": ["callback.target.value=0.9"],
    "callback/unfreeze": ["callback.unfreeze.groups=[{patterns: [a], at: 1}]"],
    "amp/float16": ["parallel.devices=gpu:1"],
    "model/gluoncv": ["dataset=cifar10"],
    "metric/top_k_accuracy": ["metric.top_k_accuracy.top_k=3"],
    "dataset/text": ["model=bert"],
    "dataset/masked_text": ["model=bert"],
    "dataset/glue": ["model=bert"],
    **{option: ["task=segmentation"] for option in SEGMENTATION},
    **{option: ["task=detection"] for option in DETECTION},
    "loss/quantile": ["task=forecasting"],
    "loss/likelihood": ["model=deepar"],
    "loss/full_softmax": ["model=sasrec"],
    "model/keyword_cnn": ["dataset=formant_keywords"],
    "loss/heatmap_l2": ["task=pose_estimation"],
    **{option: ["task=language_modeling"] for option in LANGUAGE},
    **{option: ["task=translation"] for option in TRANSLATION},
    "loss/yolact": ["task=instance_segmentation"],
    "loss/mask_two_stage": ["model=mask_rcnn"],
    "loss/token_softmax_cross_entropy": ["task=token_classification"],
    "loss/span_softmax_cross_entropy": ["task=question_answering"],
    "loss/ctc": ["task=speech_recognition"],
    **{f"loss/{name}": ["task=recommendation"] for name in ("bpr", "sampled_bce", "sampled_softmax")},
    **{f"loss/{name}": ["task=metric_learning"] for name in ("arcface", "cosface", "sub_centre_arcface", "triplet")},
    "loss/binary_cross_entropy": ["task=tabular"],
    "loss/class_cross_entropy": ["task=tabular"],
    "loss/a2c": ["task=reinforcement_learning"],
    "loss/ppo": ["task=reinforcement_learning"],
    "loss/dqn": ["task=reinforcement_learning", "model=q_network"],
    "loss/sac": ["task=reinforcement_learning", "model=soft_actor_critic"],
    "loss/frame_l1": ["task=speech_synthesis"],
    "loss/frame_l2": ["task=speech_synthesis"],
    "loss/multibox": ["model=ssd"],
    "loss/two_stage": ["model=faster_rcnn"],
    "loss/yolo3": ["model=yolo3"],
    "loss/masked_softmax_cross_entropy": ["model=bert", "dataset=masked_text"],
    "metric/masked_accuracy": ["model=bert", "dataset=masked_text"],
    "metric/masked_perplexity": ["model=bert", "dataset=masked_text"],
}
TRACKER_PACKAGES = {"mlflow": "mlflow", "wandb": "wandb"}
# What is not here, though an option stands for it; "" where it is.
MISSING = {
    "kvstore/horovod": "" if has_horovod() else "Horovod is not installed",
    "amp/bfloat16": "" if computes_bfloat16(cpu_flags()) else "this processor has no bfloat16",
    **{
        f"model/{path.stem}": "it needs a file; tests of networks from files compose it"
        for path in (CONF / "model").glob("*.yaml")
        if path.stem in ("symbol", "symbol_ssd", "onnx")
    },
    **{
        f"logger/{name}": "" if importlib.util.find_spec(package) else f"{package} is not installed"
        for name, package in TRACKER_PACKAGES.items()
    },
}


def test_every_folder_is_a_group() -> None:
    folders = {path.name for path in CONF.iterdir() if path.is_dir()}
    assert folders == {*GROUPS, *PRESET_GROUPS, "hydra"}


def test_every_yaml_is_an_option_or_a_preset() -> None:
    assert set(FILES) == {*OPTIONS, *PRESETS, *(path for path in FILES if path.parts[0] == "hydra")}


def task_of_metric(name: str) -> str:
    content = OmegaConf.load(CONF / "metric" / f"{name}.yaml")
    metric = locate(str(next(iter(content.values()))._target_))
    tasks = option_classes("task").items()
    return next(
        task for taken in metric.takes.targets for task, kind in tasks if issubclass(kind.takes.targets[0], taken)
    )


def composed_together() -> Dict[str, List[Path]]:
    """Name of a case -> options of a group that one description holds: a composition takes a third of a second."""
    cases: Dict[str, List[Path]] = {}
    for option in OPTIONS:
        group, name = option.parts
        alone = group not in NAMED_GROUPS or option.name == "default" or str(option) in NEEDS or str(option) in MISSING
        task = f"/{task_of_metric(name)}" if group == "metric" else ""
        cases.setdefault(str(option) if alone and group != "metric" else group + task, []).append(option)
    return cases


CASES = [
    pytest.param(options, marks=[pytest.mark.skip(MISSING[name])] if MISSING.get(name) else [], id=name)
    for name, options in composed_together().items()
]
MONITORED = {
    "classification": "accuracy",
    "masked_language_modeling": "masked_accuracy",
    "segmentation": "mean_iou",
    "detection": "voc_ap",
    "language_modeling": "bits_per_byte",
    "metric_learning": "verification_accuracy",
    "pose_estimation": "pck",
    "instance_segmentation": "mask_ap50",
    "token_classification": "entity_f1",
    "question_answering": "exact_match",
    "translation": "bleu",
    "summarization": "rouge_l",
    "speech_recognition": "cer",
    "speech_synthesis": "mel_error",
    "reinforcement_learning": "return",
    "tabular": "log_loss",
    "recommendation": "ndcg_at_k_sampled",
    "sequential_recommendation": "ndcg_at_k",
    "regression": "root_mean_squared_error",
    "forecasting": "crps",
    "multi_label": "mean_average_precision",
}


@pytest.mark.slow_cases("model/centernet_fpn", "model/conformer", "model/deep_speech2", "model/fastspeech")
@pytest.mark.parametrize("options", CASES)
def test_every_option_composes_and_validates(describe_run, options: List[Path]) -> None:
    group = options[0].parts[0]
    names = [option.name for option in options]
    choice = [f"{group}=[{','.join(names)}]" if group in NAMED_GROUPS else f"{group}={names[0]}"]
    if group == "metric":  # beside what is monitored
        task = task_of_metric(names[0])
        monitored = MONITORED.get(task, "root_mean_squared_error")
        choice = [f"task={task}", f"metric=[{','.join(dict.fromkeys([monitored, *names]))}]"]
    needs = dict.fromkeys(word for option in options for word in NEEDS.get(str(option), []))
    description = describe_run(*choice, *(word for word in needs if word not in choice))
    made = getattr(description, group)
    specs = made if group in NAMED_GROUPS else {"": made}
    nodes = description.config[group] if group in NAMED_GROUPS else {"": description.config[group]}
    assert all(isinstance(spec, GROUPS[group]) for spec in specs.values())
    files = [OmegaConf.to_container(OmegaConf.load(CONF / option.with_suffix(".yaml"))) for option in options]
    assert set(targets_in(files)) <= set(targets_in(nodes))
    for key, spec in specs.items():  # in the order of the class, whatever the file lists
        assert list(nodes[key]) == ["_target_", *type(spec).model_fields]


@pytest.mark.parametrize("preset", PRESETS, ids=str)
def test_every_preset_composes_and_only_overrides(describe_run, preset: Path) -> None:
    group, name = preset.parts
    content = OmegaConf.to_container(OmegaConf.load(CONF / preset.with_suffix(".yaml")))
    assert content.pop("score", None) is None or group == "experiment"  # no setting: see tests/archive/test_score.py
    assert set(content) <= {*GROUPS, "defaults", "hydra"}
    assert (CONF / preset.with_suffix(".yaml")).read_text().startswith("# @package _global_\n")
    for entry in content.pop("defaults", []):
        assert entry in [path.name for path in PRESETS] or all(
            key.startswith(("override /", "/callback@"))
            for key in entry  # adds a callback
        )
    assert "_target_" not in str(content)
    description = describe_run(f"{group}={name}")
    for name, settings in content.items():
        for field, value in settings.items() if isinstance(settings, dict) else ():
            given = description.config[name][field]
            assert given == value or isinstance(value, dict) and value.items() <= given.items()


def targets_in(content: Any) -> List[str]:
    return [str(node["_target_"]) for node in nodes_with_target(content)]


def nodes_with_target(content: Any) -> Iterator[Any]:
    if isinstance(content, dict):
        yield from [content] if "_target_" in content else []
        for value in content.values():
            yield from nodes_with_target(value)
    elif isinstance(content, list):
        for value in content:
            yield from nodes_with_target(value)


@pytest.mark.parametrize("option", OPTIONS, ids=str)
def test_a_yaml_lists_no_value_that_is_the_default(option: Path) -> None:
    """Fields, defaults and descriptions are in the classes alone."""
    for node in nodes_with_target(OmegaConf.to_container(OmegaConf.load(CONF / option.with_suffix(".yaml")))):
        target = import_target(node.pop("_target_"), str(option))
        assert issubclass(target, Spec)
        node.pop("defaults", None)
        assert set(node) <= set(target.model_fields)
        defaults = flatten(target().model_dump(mode="json"))
        assert [name for name, value in flatten(node).items() if name in defaults and defaults[name] == value] == []


@pytest.mark.parametrize("option", OPTIONS, ids=str)
def test_every_field_has_a_description(option: Path) -> None:
    for node in nodes_with_target(OmegaConf.to_container(OmegaConf.load(CONF / option.with_suffix(".yaml")))):
        target = import_target(node["_target_"], str(option))
        fields = [name.split(".") for name in flatten(target().model_dump(mode="json"))]
        assert [".".join(names) for names in fields if not spec_help(target, names)] == []


def test_no_option_has_the_name_of_a_task_that_refuses_it() -> None:
    tasks = {option.name for option in OPTIONS if option.parts[0] == "task"}
    named = [option for option in OPTIONS if option.parts[0] != "task" and option.name in tasks]
    for option in named:
        content = OmegaConf.to_container(OmegaConf.load(CONF / option.with_suffix(".yaml")))
        for node in nodes_with_target(content):
            task, target = option_classes("task")[option.name], import_target(node["_target_"], "")
            assert any(map(target.takes.takes_target, task.takes.targets)), option


def test_the_chosen_defaults_equal_their_classes(describe_run) -> None:
    description = describe_run()
    for group in ("trainer", "checkpoint", "early_stopping", "runtime", "parallel", "kvstore", "amp"):
        made = getattr(description, group)
        assert made == type(made)(), group


def test_no_loggers_and_no_callbacks_are_a_choice(describe_run) -> None:
    description = describe_run("logger=[]", "~callback")
    assert dict(description.logger) == {} and dict(description.callback) == {}


class Misspelt(Callback):
    def on_validate(self, validation, progress) -> None:
        """Would never be called."""


@pytest.mark.slow
def test_uncalled_hook_is_refused(describe_run) -> None:
    with pytest.raises(ConfigError, match="nothing calls Misspelt.on_validate. Did you mean 'on_validation'?"):
        describe_run(f"+callback.own._target_={__name__}.Misspelt")


GLUON_LOSS = "loss._target_=mxnet.gluon.loss.SoftmaxCrossEntropyLoss"


@pytest.mark.slow
@pytest.mark.parametrize(
    "overrides, part",
    [
        (["trainer.max_epochs=null"], "nothing limits the run"),
        (["trainer.max_epochs=null", "trainer.max_time=5"], "lr_scheduler"),
        (["trainer.monitor=val/f1"], "metric=[accuracy,f1]"),
        (["early_stopping.monitor=test/loss"], "early_stopping.monitor=test/loss"),
        (["trainer.grad_accumulation=65"], "dataset.batch_size=64"),
        (["dataset.val_fraction=0.5", "dataset.test_fraction=0.5"], "below 1"),
        (["lr_scheduler=multistep", "lr_scheduler.milestones=[9,4]"], "milestones=[9.0, 4.0]: each must come after"),
        (["lr_scheduler.warmup=5", "lr_scheduler.duration=4"], "warmup=5 must be shorter than duration=4"),
        ([GLUON_LOSS, "loss.label_smoothing=0.1"], "cannot be smoothed. Type loss.dense_labels=true"),
        ([GLUON_LOSS, "dataset.augment.mixup=0.2"], "cannot be mixed. Type loss.dense_labels=true"),
        (["loss=l1", "loss.dense_labels=true"], "there is no 'loss.dense_labels'"),
        (
            ["dataset=masked_text", "model=bert", GLUON_LOSS],
            "whose label is -1. Type loss=masked_softmax_cross_entropy",
        ),
    ],
)
def test_rules_between_settings(describe_run, overrides: list, part: str) -> None:
    with pytest.raises(ConfigError, match="(?s).*") as caught:
        describe_run(*overrides)
    assert part in str(caught.value)


def test_the_beginning_of_a_name_is_a_suggestion_behind_nearer_spellings(describe_run) -> None:
    with pytest.raises(ConfigError, match="trainer.monitor=val/a: this run does not measure it. Did you mean 'val/acc"):
        describe_run("metric=[accuracy,f1]", "trainer.monitor=val/a")


def test_replicas_may_differ_in_size_and_microbatches_may_not(describe_run) -> None:
    describe_run("parallel=data", "dataset.batch_size=7")
    with pytest.raises(ConfigError, match="microbatches must be equal. Type dataset.batch_size=8 or 16"):
        describe_run("parallel=pipeline", "dataset.batch_size=12")


@pytest.mark.parametrize("group", [group for group in GROUPS if group not in NAMED_GROUPS])
def test_a_class_of_another_group_is_refused(describe_run, group: str) -> None:
    other = "mxtrain.training.spec.Trainer" if group != "trainer" else "mxtrain.amp.spec.FullPrecision"
    with pytest.raises(ConfigError, match=rf"{group}\._target_={other}: is no "):
        describe_run(f"{group}._target_={other}")


@pytest.mark.parametrize(
    "overrides, read",
    [
        *(
            (["dataset=" + name, "dataset.root=~/x"], lambda made: made.dataset.root)
            for name in ("mnist", "cifar10", "cifar100", "image_folder", "image_record", "fashion_mnist")
        ),
        *(
            (["task=segmentation", f"dataset={name}", "dataset.root=~/x"], lambda made: made.dataset.root)
            for name in ("segmentation_folder", "voc_segmentation", "ade20k", "cityscapes")
        ),
        (["dataset=image_folder", "dataset.root='$HOME/x'"], lambda made: made.dataset.root),
        (["dataset=glue", "dataset.task=rte", "dataset.root=~/x", "model=bert"], lambda made: made.dataset.root),
        (["model=bert", "dataset.train=~/x", "dataset.sentence=a", "dataset.label=b"], lambda made: made.dataset.train),
        (["model=bert", "dataset=masked_text", "dataset.train=[~/x,~/y]"], lambda made: made.dataset.train[0]),
        (["model=bert", "dataset.vocab=~/x"], lambda made: made.dataset.vocab),
        (["model.weights=~/x"], lambda made: made.model.weights),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_paths_are_read_as_a_shell_reads_them(overrides, read, describe_run, monkeypatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    assert read(describe_run(*overrides)) == "/home/me/x"
