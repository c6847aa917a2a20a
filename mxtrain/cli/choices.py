"""Explains what is wrong with an override `group=option`, and which option was meant."""

from __future__ import annotations

from typing import Dict, List, Optional, Sequence

from hydra.core.override_parser.types import Override

from mxtrain.cli.config_files import ConfigFiles, short
from mxtrain.description.config import shown
from mxtrain.description.groups import NAMED_GROUPS, PRESET_GROUPS
from mxtrain.errors import did_you_mean

OTHER_OPTIONS: Dict[str, Dict[str, str]] = {
    "amp": {"fp16": "float16", "half": "float16", "mixed": "bfloat16", "bf16": "bfloat16", "fp32": "off",
            "float32": "off", "true": "bfloat16", "on": "bfloat16", "auto": "bfloat16"},
    "dataset": {"imagenet": "image_folder", "folder": "image_folder", "recordio": "image_record", "csv": "text",
                "pascal_voc": "voc", "voc_detection": "voc", "coco_detection": "coco", "conll2003": "conll",
                "squad1": "squad", "squad2": "squad"},
    "kvstore": {"dist": "dist_sync", "hvd": "horovod", "allreduce": "horovod"},
    "loss": {"cross_entropy": "softmax_cross_entropy", "ce": "softmax_cross_entropy", "mse": "l2", "mae": "l1",
             "bce": "sigmoid_bce"},
    "lr_scheduler": {"none": "constant", "null": "constant", "false": "constant", "multi_step": "multistep"},
    "metric": {"acc": "accuracy", "top_k": "top_k_accuracy", "top5": "top_k_accuracy",
               "map": "voc_ap", "ap": "coco_ap", "ap50": "coco_ap50", "map50": "voc_ap", "voc_map": "voc_ap",
               "seqeval": "entity_f1", "em": "exact_match"},
    "parallel": {"none": "single", "null": "single", "false": "single", "dp": "data", "ddp": "data", "pp": "pipeline"},
    "early_stopping": {"true": "on"},
    "debug": {"true": "fast", "on": "fast"},
    "model": {"mlpnet": "mlp", "transformer": "bert", "bi_lstm": "bilstm", "fastspeech2": "fastspeech"},
    "task": {"mlm": "masked_language_modeling", "masked_lm": "masked_language_modeling",
             "pretraining": "masked_language_modeling", "classify": "classification",
             "image_classification": "classification", "text_classification": "classification",
             "object_detection": "detection", "ner": "token_classification",
             "named_entity_recognition": "token_classification", "sequence_labeling": "token_classification",
             "tagging": "token_classification", "squad": "question_answering", "qa": "question_answering",
             "asr": "speech_recognition",
             "speech": "speech_recognition", "speech_to_text": "speech_recognition", "ctc": "speech_recognition",
             "tts": "speech_synthesis", "text_to_speech": "speech_synthesis"},
}  # fmt: skip
"""Names that other programs have for our options."""

NO = ("none", "null", "false", "no", "disabled", "disable", "off")
"""Words by which a group is meant to be switched off."""


def drop_absent_presets(parsed: Sequence[Override]) -> List[Override]:
    """Drops `debug=null` and the like, which choose no preset, and the choices of that preset before them."""
    absent = [
        number for number, override in enumerate(parsed)
        if override.key_or_group in PRESET_GROUPS and not override.is_delete() and override.value() is None
    ]  # fmt: skip
    last = {parsed[number].key_or_group: number for number in absent}
    return [override for number, override in enumerate(parsed) if number > last.get(override.key_or_group, -1)]


def wrong_choice(override: Override, files: ConfigFiles) -> Optional[str]:
    """The message for a wrong `group=option`; None where nothing is wrong, or it chooses no option of a group."""
    key = override.key_or_group
    if override.is_delete() or override.is_sweep_override() or key not in files.all_groups():
        return None
    options = files.options(key)
    if override.is_add() and key in files.groups():
        return f"{override.input_line}: '{key}' is part of every description; write {override.input_line.lstrip('+')}."
    value = override.value()
    are_names = isinstance(value, list) and all(isinstance(option, str) for option in value)
    if are_names and key not in (*NAMED_GROUPS, *PRESET_GROUPS) and key in files.groups():
        return _one_of_a_list(key, value)
    for option in value if isinstance(value, list) else [value]:
        if not isinstance(option, str) or (option not in options and "${" not in option):
            return _no_option(key, option, files, options)
    return None


def _one_of_a_list(group: str, value: Sequence[object]) -> str:
    names = [shown(option) for option in value]
    if len(names) > 1:
        return f"{group}=[{','.join(names)}]: {group} is one option. To train with each: -m {group}={','.join(names)}."
    return f"{group}=[{','.join(names)}]: {group} is one option, without brackets: {group}={''.join(names) or 'NAME'}."


def _no_option(group: str, option: object, files: ConfigFiles, options: Sequence[str]) -> str:
    folder = next((f for f in files.search_path if (f / group).is_dir()), None)
    place = f" ({short(folder / group)}/)" if folder else ""
    hint = hint_for(group, option, options)
    return f"{group}={shown(option)}: there is no such option.{hint} {group} can be: {', '.join(options)}{place}."


def hint_for(group: str, option: object, options: Sequence[str]) -> str:
    """` Did you mean ...?` for an option that does not exist; an empty string where nothing is near."""
    word = shown(option).lower()
    if word in NO and group in NAMED_GROUPS:
        return f" To have none: {group}=[]."
    if word in NO and group in PRESET_GROUPS:
        return f" To have none, leave {group} out."
    meant = OTHER_OPTIONS.get(group, {}).get(word) or ("off" if word in NO and "off" in options else "")
    if meant in options:
        return f" Did you mean '{meant}'?"
    if group == "model" and gluoncv_name(word):
        return f" It is one of GluonCV's networks: write model.name={gluoncv_name(word)}."
    return did_you_mean(word, options)


def gluoncv_name(word: str) -> str:
    """GluonCV's name of a classification network, also where only its family and depth are given: `resnet50` is
    `resnet50_v1b`; an empty string where it has none."""
    from mxtrain.model.networks.gluoncv_names import CLASSIFICATION_NAMES

    word = word.lower().replace("-", "")
    if word in CLASSIFICATION_NAMES:
        return word
    kin = [name for name in CLASSIFICATION_NAMES if len(word) > 2 and name.startswith(word)]
    if not any(letter.isdigit() for letter in word):
        return min(kin, key=len, default="") if word not in ("cifar", "res") else ""
    return next((name for name in kin if name == word + "_v1b"), min(kin, key=len, default=""))
