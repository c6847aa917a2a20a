"""Writes the additions of a run with LoRA as an adapter of Hugging Face PEFT, for the network of transformers that the
run started from: without MXNet, PyTorch and data."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Collection, Dict, List, Mapping, Optional, Sequence, Set, Tuple

import numpy as np

from mxtrain.errors import ConfigError, WeightsError
from mxtrain.exporting.folder import CARD
from mxtrain.exporting.pytorch.safetensors_file import write_safetensors
from mxtrain.exporting.pytorch.weights import WrittenWeights
from mxtrain.files.durable import encode_json, replace_file
from mxtrain.files.new_folder import new_folder
from mxtrain.model.foreign.hub import ADAPTER_CONFIG
from mxtrain.model.foreign.importing import family_of, place_names, read_config, translate
from mxtrain.model.foreign.peft import ADAPTER, MATRICES, PREFIX
from mxtrain.model.foreign.safetensors_file import is_safetensors, read_safetensors
from mxtrain.model.foreign.table import Rule, as_saved, transposed
from mxtrain.model.lora import is_addition, match_names
from mxtrain.model.published import HUB, parse_hub_name
from mxtrain.model.weights_files import find_weights
from mxtrain.model.weights_report import brief

if TYPE_CHECKING:
    from mxtrain.model.spec import Model

TASK_TYPES = {
    "classification": "SEQ_CLS",
    "multi_label": "SEQ_CLS",
    "regression": "SEQ_CLS",
    "token_classification": "TOKEN_CLS",
    "question_answering": "QUESTION_ANS",
    "language_modeling": "CAUSAL_LM",
}
"""Name of a task -> task type of PEFT."""
CLASSES = {
    "SEQ_CLS": "AutoModelForSequenceClassification",
    "TOKEN_CLS": "AutoModelForTokenClassification",
    "QUESTION_ANS": "AutoModelForQuestionAnswering",
    "CAUSAL_LM": "AutoModelForCausalLM",
    "": "AutoModel",
}
"""Task type -> class of transformers."""
SAME_RTOL, SAME_ATOL = 1e-5, 1e-7
"""Bounds for weights that did not change; an average over the steps (trainer.ema_decay) rounds them."""

ALL_WEIGHTS = "Type for=safetensors, which writes all weights, with the additions."


class Unwritable(ConfigError):
    """The run cannot be written as an adapter."""

    def __init__(self, reason: str):
        super().__init__(f"export.for=peft: {reason}")


@dataclass(frozen=True)
class _Base:
    """The network of transformers that the run started from.

    Attributes:
        name: its family.
        arrays: structural name -> array of its file, as converted.
        places: structural name -> name of the parameter in transformers' class for the task, and its rule.
        prefix: beginning of the names of the encoder in that class, e.g. "bert.".
        task_type: task type of PEFT; "" if the class has no head that PEFT knows.
        num_outputs: number of outputs of the head; None if there is no head.
    """

    name: str
    arrays: Mapping[str, np.ndarray]
    places: Mapping[str, Tuple[str, Rule]]
    prefix: str
    task_type: str
    num_outputs: Optional[int]


def export_adapter(
    arrays: Mapping[str, np.ndarray],
    model: Model,
    task: str,
    classes: Sequence[str],
    folder: Path,
    facts: Mapping[str, Any],
) -> WrittenWeights:
    """Writes an adapter into a new folder: adapter_config.json, adapter_model.safetensors and README.md.

    Args:
        arrays: weights of the run by structural name, with the matrices of its additions.
        model: description of the network, with `lora` and `weights`.
        task: name of the task.
        classes: names of the classes; empty for tasks without classes.
        folder: folder to create.
        facts: facts about the checkpoint.

    Raises:
        ConfigError: the run has no additions, or trained what PEFT cannot add to the network.
        WeightsError: the file of `model.weights` is missing, or is not the one that the run started from.
        DataError: the folder exists already or cannot be written.
    """
    if not model.lora.rank:
        raise Unwritable("the run was trained without model.lora. Type for=safetensors, which writes all weights.")
    base = _read_base(arrays, model, task)
    layers = [name.rpartition(".")[0] for name in arrays if is_addition(name) and name.endswith("_a")]
    written: Dict[str, np.ndarray] = {}
    targets: List[str] = []
    for layer in layers:
        if f"{layer}.weight" not in base.places:
            raise Unwritable(f"the network of {base.name} has no layer for the addition to '{layer}'.")
        target = base.places[f"{layer}.weight"][0][: -len(".weight")]
        targets.append(target)
        for end, own in MATRICES.items():
            written[f"{PREFIX}{target}.{end}"] = arrays[f"{layer}.{own}"]
    saved = _modules_to_save(base, arrays, model, targets)
    for name, (theirs, rule) in base.places.items():
        if any(theirs.startswith(f"{module}.") for module in saved):
            if rule.convert not in (as_saved, transposed):
                raise Unwritable(f"'{name}' was trained itself, and has another form in {base.name}.")
            written[f"{PREFIX}{theirs}"] = rule.convert(arrays[name])
    # PEFT saves the head itself for these task types, and adds nothing to it.
    heads = {module for module in saved if not module.startswith(base.prefix)}
    task_type = base.task_type if heads or base.task_type == "CAUSAL_LM" else ""
    config = _config(model, task_type, targets, saved, _is_transposed(base, layers))
    with new_folder(folder) as root:
        write_safetensors(root / ADAPTER, written, {"format": "pt"})
        replace_file(root / ADAPTER_CONFIG, encode_json(config, 2) + b"\n")
        replace_file(root / CARD, _card(config, base, classes, facts).encode())
    count = sum(array.size for array in written.values())
    remarks = [f"additions to {len(targets)} layers of {base.name}: {len(written)} arrays with {count:,} numbers"]
    if saved:
        remarks.append(f"trained themselves: {', '.join(saved)}")
    return WrittenWeights(folder, remarks)


def _read_base(arrays: Mapping[str, np.ndarray], model: Model, task: str) -> _Base:
    path = find_weights(model.weights, model.published_name) if model.weights else None
    family = None
    if path is not None and is_safetensors(path):
        theirs, config = read_safetensors(path), read_config(path)
        family = family_of(theirs, config)
    if family is None or not family.tables or not family.task_heads:
        raise Unwritable(
            f"an adapter belongs to a network of transformers, and model.weights={model.weights} is no file of one. "
            f"{ALL_WEIGHTS}"
        )
    shapes = {name: array.shape for name, array in arrays.items()}
    translated, table = translate(family, theirs, shapes)
    table.complete(translated.arrays, shapes)
    prefix = family.prefixes[0]
    has_prefix = any(prefix in name for name in theirs)
    full = {
        name: (plain if prefix not in name and has_prefix else prefix + plain)
        for plain, name in family.without_prefix(theirs).items()
    }
    task_type = TASK_TYPES.get(task, "")
    heads = [f"{layer}.{role}" for layer in family.task_heads.get(task_type, ()) for role in ("weight", "bias")]
    places = {
        placed.ours: (name, placed.rule)
        for names in ([*full.values()], heads)
        for name, placed in place_names(family, table, names, shapes).items()
        if placed.ours
    }
    if task_type not in family.task_heads:
        task_type = ""
    biases = [ours for ours, (theirs, _) in places.items() if heads and theirs == heads[-1]]
    num_outputs = len(arrays[biases[0]]) if biases else None
    return _Base(family.name, translated.arrays, places, prefix, task_type, num_outputs)


def _modules_to_save(
    base: _Base, arrays: Mapping[str, np.ndarray], model: Model, targets: Collection[str]
) -> List[str]:
    """Returns the modules of transformers' class whose parameters the run has trained themselves.

    Raises:
        ConfigError: PEFT cannot save one of them beside the additions.
        WeightsError: other parameters differ from the file that the run started from.
    """
    own = [name for name in arrays if not is_addition(name)]
    trained = {name for pattern in model.lora.train for name in match_names(pattern, own, "train", "parameter")}
    embedding = getattr(model, "embedding_name", "")  # which text models share with their output layer
    modules: Set[str] = set()
    for name in own:
        before = base.arrays.get(name)
        if before is not None and before.shape == arrays[name].shape:
            if np.allclose(before, arrays[name], rtol=SAME_RTOL, atol=SAME_ATOL):
                continue
            if name not in trained and model.lora.adapter is None:
                raise WeightsError(
                    f"export.for=peft: '{name}' is frozen in the run, and differs from model.weights={model.weights}: "
                    "the file has changed since the run began."
                )
        if name not in base.places:
            raise Unwritable(
                f"'{name}' was trained itself, and the network of {base.name} for this task has no such parameter. "
                f"{ALL_WEIGHTS}"
            )
        layer = base.places[name][0].rpartition(".")[0]
        module = layer if layer.startswith(base.prefix) else layer.partition(".")[0]
        is_shared = module == "cls" or (embedding != "" and name.endswith(embedding))
        if layer in targets or is_shared:
            raise Unwritable(
                f"'{name}' was trained itself, beside an addition or in a layer with two uses, which PEFT saves in "
                f"another form. {ALL_WEIGHTS}"
            )
        modules.add(module)
    return sorted(modules)


def _is_transposed(base: _Base, layers: Sequence[str]) -> bool:
    return any(base.places[f"{layer}.weight"][1].convert is transposed for layer in layers)


def _config(
    model: Model, task_type: str, targets: Sequence[str], saved: Sequence[str], is_transposed: bool
) -> Dict[str, Any]:
    assert model.weights is not None
    name, revision = model.weights, None
    if name.startswith(HUB):
        hub = parse_hub_name(name)
        name, revision = hub.repository, hub.revision
    elif is_safetensors(name):
        name = str(Path(name).parent)
    alpha = model.lora.alpha
    return {
        "peft_type": "LORA",
        "task_type": task_type or None,
        "base_model_name_or_path": name,
        "revision": revision,
        "r": model.lora.rank,
        "lora_alpha": int(alpha) if alpha == int(alpha) else alpha,
        "lora_dropout": model.lora.dropout,
        "target_modules": sorted(targets),
        "modules_to_save": list(saved) or None,
        "bias": "none",
        # The weights of GPT-2's Conv1D are (inputs, outputs); those of the additions are not.
        "fan_in_fan_out": is_transposed,
        "init_lora_weights": True,
        "use_rslora": False,
        "inference_mode": True,
    }


def _card(config: Mapping[str, Any], base: _Base, classes: Sequence[str], facts: Mapping[str, Any]) -> str:
    kind = CLASSES[config["task_type"] or ""]
    sizes = f", num_labels={base.num_outputs}" if config["task_type"] in ("SEQ_CLS", "TOKEN_CLS") else ""
    lines = [
        f"# Adapter for {base.name}",
        "",
        f"Low-rank additions to {len(config['target_modules'])} layers, of step {facts['step']} of a run on "
        f"{facts['dataset']}.",
        "",
        "```python",
        "from peft import PeftModel",
        f"from transformers import {kind}",
        "",
        f'base = {kind}.from_pretrained("{config["base_model_name_or_path"]}"{sizes})',
        'network = PeftModel.from_pretrained(base, "FOLDER")',
        "```",
        "",
    ]
    if classes:
        lines += [f"Classes in the order of the outputs: {brief([str(name) for name in classes])}.", ""]
    return "\n".join(lines)
