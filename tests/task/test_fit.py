"""Fit of datasets, models, losses and metrics: the combinations that names of tasks gave, and kinds of a user."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any, Dict, List, Tuple

import pytest

from mxtrain.config.options import option_classes, remember_folders, task_for, usual_options
from mxtrain.errors import CheckpointError, ConfigError
from mxtrain.task.fit import check_fit, learned_target_of, require_same_learned_names, target_of
from mxtrain.task.spec import Task
from mxtrain.text.classification.glue import Glue
from mxtrain.types.kinds import Arrays, ClassIndex, Gives, Images, Number, SampleKind, Takes, TargetKind
from mxtrain.vision.kinds import Boxes, Masks

BY_TASK = """
classification dataset: audio_folder cifar10 cifar100 digits fashion_mnist formant_keywords glue image_folder
    image_record mnist synthetic text
classification model: bert gluoncv keyword_cnn lenet mlp resnet
classification loss: hinge huber kl_div l1 l2 logistic sigmoid_bce softmax_cross_entropy squared_hinge
classification metric: accuracy class_perplexity cross_entropy f1 mcc probability_mae probability_mse
    probability_rmse top_k_accuracy
detection dataset: coco digit_scenes image_list voc
detection model: centernet_fpn faster_rcnn gluoncv_centernet ssd yolo3
detection loss: heatmap_focal multibox two_stage yolo3
detection metric: coco_ap coco_ap50 coco_ap75 coco_ar voc07_ap voc_ap
instance_segmentation dataset: coco digit_scenes voc
instance_segmentation model: mask_rcnn yolact
instance_segmentation loss: mask_two_stage yolact
instance_segmentation metric: coco_ap coco_ap50 coco_ap75 coco_ar mask_ap mask_ap50 mask_ap75 mask_ar voc07_ap
    voc_ap
language_modeling dataset: plain_text wikitext
language_modeling model: gpt lstm
language_modeling loss: token_cross_entropy
language_modeling metric: bits_per_byte token_perplexity
masked_language_modeling dataset: masked_text
masked_language_modeling model: bert
masked_language_modeling loss: masked_softmax_cross_entropy
masked_language_modeling metric: masked_accuracy masked_perplexity
pose_estimation dataset: coco_key_points digit_key_points
pose_estimation model: pose_fpn simple_pose
pose_estimation loss: heatmap_l2
pose_estimation metric: oks_ap pck
question_answering dataset: squad
question_answering model: bert bilstm
question_answering loss: span_softmax_cross_entropy
question_answering metric: answer_f1 exact_match
recommendation dataset: imported_names interactions movielens
recommendation model: deepfm factorization_machine fism matrix_factorization neumf svd_pp wide_deep
recommendation loss: bpr huber l1 l2 sampled_bce sampled_softmax
recommendation metric: hr_at_k hr_at_k_sampled mean_absolute_error mean_squared_error ndcg_at_k ndcg_at_k_sampled
    root_mean_squared_error
regression dataset: feature_table libsvm number_table
regression model: bert deepfm factorization_machine gluoncv lenet mlp resnet wide_deep
regression loss: huber l1 l2
regression metric: mean_absolute_error mean_squared_error pearson root_mean_squared_error spearman
reinforcement_learning dataset: gymnasium
reinforcement_learning model: actor_critic q_network soft_actor_critic
reinforcement_learning loss: a2c dqn ppo sac
reinforcement_learning metric: episode_length return
segmentation dataset: ade20k cityscapes digit_scenes segmentation_folder voc_segmentation
segmentation model: fpn gluoncv_segmentation
segmentation loss: pixel_softmax_cross_entropy
segmentation metric: mean_iou mean_iou_all_classes pixel_accuracy
speech_recognition dataset: aishell common_voice digit_lines kaldi librispeech ljspeech speech_manifest spoken_digits
speech_recognition model: conformer deep_speech2
speech_recognition loss: ctc
speech_recognition metric: cer sentence_accuracy wer
speech_synthesis dataset: aligned_manifest formant_digits spoken_numbers
speech_synthesis model: fastspeech
speech_synthesis loss: frame_l1 frame_l2
speech_synthesis metric: mel_cepstral_distortion mel_error
tabular dataset: breast_cancer criteo feature_table libsvm
tabular model: deepfm factorization_machine mlp wide_deep
tabular loss: binary_cross_entropy class_cross_entropy
tabular metric: accuracy average_precision brier_score expected_calibration_error f1 log_loss mcc roc_auc
    top_k_accuracy
token_classification dataset: conll
token_classification model: bert bilstm
token_classification loss: token_softmax_cross_entropy
token_classification metric: entity_f1 token_accuracy
translation dataset: number_and_date_phrases parallel_text
translation model: gnmt transformer
translation loss: label_smoothed_cross_entropy
translation metric: bits_per_byte bleu chrf sentence_accuracy token_perplexity
"""
"""Task, group and the options that fitted each other when each class listed the names of its tasks."""

BY_SAMPLE = """
features: breast_cancer criteo feature_table | deepfm factorization_machine mlp wide_deep
frames: aishell common_voice digit_lines kaldi librispeech ljspeech speech_manifest spoken_digits | conformer
    deep_speech2
images: ade20k cifar10 cifar100 cityscapes coco coco_key_points digit_key_points digit_scenes digits fashion_mnist
    image_folder image_list image_record mnist segmentation_folder synthetic voc voc_segmentation | centernet_fpn
    faster_rcnn fpn gluoncv gluoncv_centernet gluoncv_segmentation lenet mask_rcnn mlp pose_fpn resnet simple_pose
    ssd yolact yolo3
indexed_features: libsvm | factorization_machine
interactions: imported_names interactions movielens | deepfm factorization_machine fism matrix_factorization neumf
    svd_pp wide_deep
numbers: number_table | mlp
observations: gymnasium | actor_critic q_network soft_actor_critic
spectrograms: audio_folder formant_keywords | keyword_cnn mlp
symbols: aligned_manifest formant_digits spoken_numbers | fastspeech
text: conll glue masked_text number_and_date_phrases parallel_text plain_text squad text wikitext | bert bilstm gnmt
    gpt lstm transformer
"""
"""Type of samples: its datasets | the models that took it, for any task."""

NEW = {
    **{(task, "model", "bilstm"): "it scores texts, too" for task in ("classification", "multi_label", "regression")},
    ("regression", "dataset", "text"): "its texts may have numbers, too",
    ("token_classification", "metric", "masked_accuracy"): "the accuracy of labelled positions is one class now",
    ("masked_language_modeling", "metric", "token_accuracy"): "the same class",
    ("token_classification", "metric", "masked_perplexity"): "the perplexity of labelled positions has one formula",
}
"""Combinations that fit now and did not before, with the reason. None was lost."""

OPTIONS = {group: option_classes(group) for group in ("task", "dataset", "model", "loss", "metric")}


def rows_of(text: str) -> Dict[str, List[str]]:
    rows = [row.split(":") for row in re.sub(r"\n {4}", " ", text.strip()).splitlines()]
    return {name: words.split() for name, words in rows}


ACCEPTED = rows_of(BY_TASK)
EARLIER = {option for accepted in ACCEPTED.values() for option in accepted}
"""Options that named their tasks. Later ones, such as model=symbol, never did."""
EARLIER_TASKS = [task for task in OPTIONS["task"] if f"{task} dataset" in ACCEPTED]


def given_by(option: str) -> Gives:
    gives = Glue().gives if option == "glue" else OPTIONS["dataset"][option].gives  # type: ignore[attr-defined]
    assert isinstance(gives, Gives)
    return gives


def described(task: str, **chosen: str) -> Tuple[Any, Any]:
    """Returns a task and a description of its default parts, in which options of some groups are replaced."""
    names = {group: (chosen.get(group) or usual_options(task, group)[0]) for group in ("dataset", "model", "loss")}
    if "loss" not in chosen and task in (
        "detection",
        "instance_segmentation",
        "reinforcement_learning",
    ):  # the model chooses the loss
        names["loss"] = ACCEPTED[f"{task} loss"][0]
    metrics = [chosen["metric"]] if "metric" in chosen else usual_options(task, "metric")
    parts: Any = {group: OPTIONS[group][name] for group, name in names.items()}
    dataset = SimpleNamespace(
        gives=given_by(names["dataset"]), sampler="shuffle", signature_class=parts["dataset"].signature_class
    )
    model = SimpleNamespace(takes=parts["model"].takes, require_known=lambda names: None, loss_option="")
    metric = {name: OPTIONS["metric"][name] for name in metrics}
    return OPTIONS["task"][task](), SimpleNamespace(dataset=dataset, model=model, loss=parts["loss"], metric=metric)


@pytest.mark.parametrize("task", EARLIER_TASKS)
@pytest.mark.parametrize("group", ["dataset", "model", "loss", "metric"])
def test_kinds_accept_the_options_that_named_the_task(task: str, group: str) -> None:
    accepted = {option for name, word, option in NEW if (name, word) == (task, group)}
    for option in EARLIER.intersection(OPTIONS[group]):
        try:
            check_fit(*described(task, **{group: option}))
            accepted_now = True
        except ConfigError as error:
            # Samples are compared after the targets: see the next test.
            accepted_now = "model takes" in str(error)
        assert accepted_now == (option in {*ACCEPTED[f"{task} {group}"], *accepted}), option


def test_kinds_accept_the_samples_that_models_named() -> None:
    for row, words in rows_of(BY_SAMPLE).items():
        datasets, models = " ".join(words).split(" | ")
        for dataset in datasets.split():
            assert given_by(dataset).sample.name == row, dataset
            for option in EARLIER.intersection(OPTIONS["model"]):
                takes: Takes = OPTIONS["model"][option].takes  # type: ignore[attr-defined]
                fits = takes.takes_sample(given_by(dataset).sample)
                # A row of interactions is a row of features; the MLP still refuses its targets.
                new = row == "interactions" and option == "mlp"
                assert fits == (option in models.split() or new), (dataset, option)


@pytest.mark.parametrize("task", EARLIER_TASKS)
def test_first_target_of_a_dataset_decides_the_task(task: str) -> None:
    datasets = EARLIER.intersection(OPTIONS["dataset"])
    first = [option for option in datasets if task_for(given_by(option).targets[0]) == task]
    assert set(first) <= set(ACCEPTED[f"{task} dataset"])
    several = {"coco", "voc", "digit_scenes", "feature_table", "libsvm"}
    assert several - set(first) >= set(ACCEPTED[f"{task} dataset"]) - set(first)


class Severity(ClassIndex):
    """A class of a user's own."""


class Dose(TargetKind):
    """A target of a user's own that is none of mxtrain's."""


class Scans(Images):
    """Samples of a user's own."""


def test_task_of_another_package_takes_a_kind_of_the_package() -> None:
    class Grading(Task):
        takes = Takes(Arrays, ClassIndex)

    _, description = described("classification")
    check_fit(Grading(), description)
    description.dataset.gives = Gives(Scans, Severity)
    check_fit(Grading(), description)
    assert target_of(Grading(), description.dataset) is Severity
    description.dataset.gives = Gives(Scans, Dose)
    with pytest.raises(ConfigError, match="Grading and the dataset do not fit: its samples are for Dose. Or a "):
        check_fit(Grading(), description)
    description.dataset.gives = Gives(SampleKind, ClassIndex)
    with pytest.raises(ConfigError, match="Grading and the dataset do not fit: its samples are for task=classif"):
        check_fit(Grading(), description)


def test_subclass_of_a_kind_is_no_substitute_for_the_special_kind() -> None:
    class Grading(Task):
        takes = Takes(Severity)

    _, description = described("classification")
    with pytest.raises(ConfigError, match="metric_learning. Type that. Or a dataset of your own that gives Severity"):
        check_fit(Grading(), description)
    description.dataset.gives = Gives(Images, Dose)
    description.model.takes = Takes(Images, Boxes)

    class Dosing(Task):
        takes = Takes(Dose)

    with pytest.raises(ConfigError, match="is for detection. Type a model of your own. Or derive Dose from one of Bo"):
        check_fit(Dosing(), description)


def test_task_without_kinds_makes_its_own_targets() -> None:
    class Anything(Task):
        pass

    _, description = described("detection")
    description.metric = {}
    description.loss = SimpleNamespace(takes=Takes())
    for gives in (Gives(Images, Boxes, Masks), Gives(Images, Dose), Gives(Images)):
        description.dataset.gives = gives
        assert target_of(Anything(), description.dataset) is TargetKind
        check_fit(Anything(), description)
    description.loss = SimpleNamespace(takes=Takes(ClassIndex))
    with pytest.raises(ConfigError, match="is for classification, not for the task Anything. Type another loss."):
        check_fit(Anything(), description)
    description.dataset.gives = Gives(SampleKind)
    with pytest.raises(ConfigError, match="Type a model of your own, or a dataset of images, e.g. dataset=digits"):
        check_fit(Anything(), description)


class Angle(Task):
    """Makes a number of the images of any dataset of classes."""

    name = "angle"
    takes = Takes(Images, ClassIndex, makes=Number)


def test_parts_of_a_task_that_makes_targets_take_what_it_makes() -> None:
    _, description = described("classification", loss="l2", metric="mean_absolute_error")
    check_fit(Angle(), description)
    assert target_of(Angle(), description.dataset) is ClassIndex
    assert learned_target_of(Angle(), description.dataset) is Number
    description.metric = {"m": SimpleNamespace(takes=Takes(ClassIndex))}
    with pytest.raises(ConfigError, match="metric.m: .* is for classification.* Type metric=.mean_absolute_error"):
        check_fit(Angle(), description)
    description.metric, description.model.takes = {}, Takes(Images, ClassIndex)
    with pytest.raises(ConfigError, match="task=angle and the model .* do not fit: it is for classification"):
        check_fit(Angle(), description)
    description.model.takes = Takes(Arrays, Number)
    description.loss = SimpleNamespace(takes=Takes(ClassIndex))
    with pytest.raises(ConfigError, match="loss: .* is for classification, not for task=angle. Type loss="):
        check_fit(Angle(), description)
    description.dataset.gives = Gives(Images, Number)
    assert learned_target_of(Angle(), description.dataset) is None
    with pytest.raises(ConfigError, match="task=angle and the dataset do not fit: .* Or a dataset for task=angle: da"):
        check_fit(Angle(), description)


@pytest.mark.parametrize(
    "chosen, said",
    [
        (
            {"dataset": "text"},
            "Or a dataset for task=detection: dataset=digit_scenes, dataset=box_csv, dataset=coco, dataset=cvat",
        ),
        ({"dataset": "text", "model": "bert"}, "or dataset=yolo with model=centernet_fpn."),
        (
            {"model": "bert"},
            "Type model=centernet_fpn. Other options that fit: faster_rcnn, gluoncv_centernet, ssd, symbol_ssd, yolo3.",
        ),
        ({"model": "yolact"}, "Type task=instance_segmentation, or model=centernet_fpn."),
        (
            {"metric": "mean_iou"},
            "is for segmentation, not for task=detection. Type metric=[voc_ap]. Other options that fit",
        ),
        ({"loss": "ctc"}, "Type loss=heatmap_focal. Other options that fit: multibox, two_stage, yolo3."),
    ],
)
def test_message_names_all_options_that_fit(chosen: Dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        check_fit(*described("detection", **chosen))


def test_message_names_the_only_dataset_that_fits() -> None:
    said = "a dataset for task=question_answering: dataset=squad."
    with pytest.raises(ConfigError, match=re.escape(said)):
        check_fit(*described("question_answering", dataset="digits"))


def test_resumed_classes_have_the_same_names_in_the_same_order() -> None:
    def learned(*names: str) -> Any:
        return SimpleNamespace(learned_names=names)

    require_same_learned_names(learned("cat", "dog"), learned("cat", "dog"), "run")
    require_same_learned_names(learned("cat", "dog"), learned("cat"), "run")  # the weights do not fit
    with pytest.raises(CheckpointError, match="class 1 was 'dog', and now it is 'owl'"):
        require_same_learned_names(learned("cat", "dog"), learned("cat", "owl"), "run")


def test_message_names_the_loss_that_a_model_needs() -> None:
    task, description = described("detection", loss="ctc")
    description.model.loss_option = "multibox"
    with pytest.raises(ConfigError, match=r"Type loss=multibox\.$"):
        check_fit(task, description)


def test_message_names_the_setting_that_a_target_needs() -> None:
    with pytest.raises(
        ConfigError, match="a dataset of text, e.g. dataset=glue dataset.task=stsb. Other models that fit"
    ):
        check_fit(*described("regression", model="bert"))
    with pytest.raises(
        ConfigError, match="a dataset of text, e.g. dataset=glue. Other models.*Other datasets that fit: text"
    ):
        check_fit(*described("classification", model="bert"))


def test_options_of_a_user_are_named_if_their_class_is_imported(tmp_path: Any) -> None:
    (tmp_path / "task").mkdir()
    (tmp_path / "task" / "grading.yaml").write_text("_target_: test_fit.Known\n")
    (tmp_path / "task" / "unknown.yaml").write_text("_target_: never_imported.Task\n")
    (tmp_path / "task" / "latin.yaml").write_bytes(b"# \xfc\n_target_: test_fit.Known\n")
    remember_folders([tmp_path])
    assert "latin" not in option_classes("task")  # a file that is not UTF-8 must not hide the message
    assert option_classes("task")["grading"] is Known and "unknown" not in option_classes("task")
    assert task_for(Dose) == "" and task_for(Number) == "regression"  # only tasks of mxtrain are defaults
    remember_folders([])
    assert "grading" not in option_classes("task")  # of an earlier command in the same process


class Known(Task):
    """A task of a user."""

    takes = Takes(Dose)


@pytest.mark.parametrize("make, kinds", [(Takes, ["classification"]), (Gives, [ClassIndex]), (Gives, [Images, Images])])
def test_values_that_are_not_kinds_are_refused(make: Any, kinds: Any) -> None:
    with pytest.raises(TypeError, match="is no kind. Give subclasses of"):
        make(*kinds)
