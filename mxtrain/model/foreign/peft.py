"""Low-rank additions (LoRA) in files of Hugging Face PEFT: reads them as the start of `model.lora`.

A folder holds adapter_config.json and adapter_model.safetensors, with `LAYER.lora_A.weight` (r, inputs),
`LAYER.lora_B.weight` (outputs, r), and the layers and biases that were trained themselves. The matrices of GPT-2's
`Conv1D` have these shapes as well, although its weight is (inputs, outputs), so none of them is transposed.

Source: peft 0.21.2, tuners/lora/config.py, tuners/lora/layer.py and utils/save_and_load.py.
"""

from __future__ import annotations

import math
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Collection, Dict, List, Mapping, NamedTuple, Sequence, Tuple, Union

from mxtrain.errors import WeightsError
from mxtrain.model.foreign.hub import ADAPTER_CONFIG
from mxtrain.model.foreign.importing import known_families, place_names, read_config
from mxtrain.model.foreign.safetensors_file import SAFETENSORS, read_safetensors
from mxtrain.model.foreign.table import Family, FamilyTable
from mxtrain.model.lora import A, B
from mxtrain.model.weights_report import brief

if TYPE_CHECKING:
    import numpy as np
    from mxnet import gluon

    from mxtrain.model.lora import Lora
    from mxtrain.model.networks.lora import Additions

ADAPTER = f"adapter_model{SAFETENSORS}"
ADAPTER_PICKLE = "adapter_model.bin"
PREFIX = "base_model.model."
"""Beginning of all names in the file."""
MATRICES = {"lora_A.weight": A, "lora_B.weight": B}
"""Ends of the names of additions in the file -> their names in our layers."""
NO_EFFECT = frozenset(
    """alpha_pattern auto_mapping base_model_name_or_path bias ensure_weight_tying eva_config exclude_modules
    fan_in_fan_out inference_mode init_lora_weights layers_pattern layers_to_transform loftq_config lora_alpha
    lora_dropout megatron_core modules_to_save peft_type peft_version qalora_group_size r rank_pattern revision
    runtime_config target_modules task_type use_rslora""".split()
)
"""Settings that are read, or that change no output of a trained adapter but through the names of its arrays."""
PLAIN_STARTS = (True, False, None, "gaussian", "eva", "orthogonal", "true", "false")
"""`init_lora_weights` that leave the weights of the base as they are."""


class Adapter(NamedTuple):
    """An adapter of PEFT.

    Attributes:
        path: path of its safetensors file.
        rank: its rank r.
        alpha: alpha such that B A is multiplied by alpha / r.
        base: name or path of the network that it was trained on, as the file says; "" if it does not.
        arrays: name without `PREFIX` -> array.
    """

    path: Path
    rank: int
    alpha: float
    base: str
    arrays: Mapping[str, np.ndarray]

    @property
    def overrides(self) -> str:
        """Returns the overrides for its rank and alpha."""
        short = f"{self.alpha:g}"
        alpha = short if float(short) == self.alpha else repr(self.alpha)
        return f"model.lora.rank={self.rank} model.lora.alpha={alpha}"

    def require_settings(self, lora: Lora) -> None:
        """Checks rank and alpha of `model.lora`.

        Raises:
            WeightsError: those of the adapter are others.
        """
        if lora.rank != self.rank or not math.isclose(lora.alpha, self.alpha, rel_tol=1e-9):
            raise WeightsError(
                f"model.lora.adapter={self.path.parent}: it was trained with other settings than model.lora.rank="
                f"{lora.rank} and model.lora.alpha={lora.alpha:g}. Type {self.overrides}."
            )


def read_adapter(path: Union[str, Path]) -> Adapter:
    """Reads an adapter.

    Args:
        path: its folder, or adapter_model.safetensors in it.

    Raises:
        WeightsError: a file is missing or damaged, or PEFT computes something else than W x + (alpha / r) B A x.
    """
    path = Path(path)
    folder, file = (path.parent, path) if path.name.endswith(SAFETENSORS) else (path, path / ADAPTER)
    said = f"model.lora.adapter={path}"
    if not folder.is_dir():
        raise WeightsError(f"{said}: there is no such folder. Name one with {ADAPTER_CONFIG} and {ADAPTER}.")
    config = read_config(folder / ADAPTER, ADAPTER_CONFIG)
    if not config:
        raise WeightsError(f"{said}: the folder has no {ADAPTER_CONFIG}, which PEFT writes beside its weights.")
    if not os.path.exists(file) and (folder / ADAPTER_PICKLE).exists():
        raise WeightsError(
            f"{said}: it has {ADAPTER_PICKLE}, a pickle, which is never loaded because loading can run code. Save it "
            f"as {ADAPTER} with a newer version of peft."
        )
    rank, alpha = _rank_and_alpha(config, said)
    arrays = {name[len(PREFIX) :] if name.startswith(PREFIX) else name: a for name, a in read_safetensors(file).items()}
    return Adapter(file, rank, alpha, str(config.get("base_model_name_or_path") or ""), arrays)


def _rank_and_alpha(config: Mapping[str, Any], said: str) -> Tuple[int, float]:
    """Returns rank and alpha of adapter_config.json, with our factor alpha / rank.

    Raises:
        WeightsError: it describes another kind of adapter.
    """
    if config.get("peft_type") != "LORA":
        raise WeightsError(f"{said}: its {ADAPTER_CONFIG} says peft_type={config.get('peft_type')}; LORA is read.")
    rank: Any = config.get("r")
    alpha: Any = config.get("lora_alpha")
    if type(rank) is not int or rank < 1 or type(alpha) not in (int, float) or not 0 < alpha < math.inf:
        raise WeightsError(
            f"{said}: its {ADAPTER_CONFIG} says r={rank} and lora_alpha={alpha}. r is a positive integer, and "
            "lora_alpha a positive number."
        )
    wrong = [f"{name}={config[name]}" for name in config if name not in NO_EFFECT and config[name]]
    start = config.get("init_lora_weights")
    if start not in PLAIN_STARTS:
        wrong.append(f"init_lora_weights={start}")
    for name, value in (("rank_pattern", rank), ("alpha_pattern", alpha)):
        others = config.get(name) or {}
        if not isinstance(others, dict) or any(other != value for other in others.values()):
            wrong.append(f"{name}={others}")
    if wrong:
        raise WeightsError(
            f"{said}: its {ADAPTER_CONFIG} says {wrong[0]}, with which PEFT computes something else than one addition "
            f"of rank {rank} to each layer."
        )
    # Source: Kalajdzievski, https://arxiv.org/abs/2312.03732: alpha / sqrt(r) in place of alpha / r.
    return rank, float(alpha) * (math.sqrt(rank) if config.get("use_rslora") else 1.0)


@dataclass(frozen=True)
class PlacedAdapter:
    """An adapter under the names of our network.

    Attributes:
        family: family of the network that it belongs to.
        additions: structural name of a layer -> its matrices A and B.
        whole: structural name of a parameter that was trained itself -> its converted array.
        unknown: names of arrays that have no place.
    """

    family: Family
    additions: Mapping[str, Dict[str, np.ndarray]]
    whole: Mapping[str, np.ndarray]
    unknown: Sequence[str]


def place_adapter(arrays: Mapping[str, np.ndarray], ours: Collection[str] = ()) -> PlacedAdapter:
    """Translates the names of an adapter.

    Args:
        arrays: see `Adapter.arrays`.
        ours: names of the parameters of our network; empty if there is no network.
    """
    found = [_place(family, table, arrays, ours) for family in known_families() for table in family.tables]

    def fit(placed: PlacedAdapter) -> int:
        names = [*(f"{layer}.weight" for layer in placed.additions), *placed.whole]
        return sum(name in ours for name in names) if ours else len(arrays) - len(placed.unknown)

    return max(found, key=fit)


def _place(
    family: Family, table: FamilyTable, arrays: Mapping[str, np.ndarray], ours: Collection[str]
) -> PlacedAdapter:
    ends = {name: next((end for end in MATRICES if name.endswith(f".{end}")), "") for name in arrays}
    # PEFT moves a layer that it adds to under `base_layer`.
    plain = {
        name: f"{name[: -len(end)]}weight" if end else name.replace(".base_layer.", ".") for name, end in ends.items()
    }
    places = place_names(family, table, set(plain.values()), ours)
    additions: Dict[str, Dict[str, np.ndarray]] = {}
    whole: Dict[str, np.ndarray] = {}
    unknown: List[str] = []
    for name, array in arrays.items():
        place = places.get(plain[name])
        if place is None or not place.ours:
            unknown.append(name)
        elif ends[name]:
            layer = place.ours[: -len(".weight")]
            additions.setdefault(layer, {})[MATRICES[ends[name]]] = array
        else:
            whole[place.ours] = place.rule.convert(array)
    return PlacedAdapter(family, additions, whole, unknown)


def load_adapter(parameters: Mapping[str, gluon.Parameter], added: Additions, lora: Lora) -> List[str]:
    """Loads an adapter into a network with additions.

    Args:
        parameters: parameters of the network by structural name, with the additions and the weights of the base.
        added: the additions of the network.
        lora: settings with `adapter`.

    Returns:
        Sentences for the report on the weights.

    Raises:
        WeightsError: the adapter belongs to other layers, or its arrays do not fit; nothing is loaded then.
    """
    import numpy as np

    assert lora.adapter is not None
    layers = added.layers
    adapter = read_adapter(lora.adapter)
    adapter.require_settings(lora)
    placed = place_adapter(adapter.arrays, parameters)
    said = f"The adapter {adapter.path}"
    if placed.unknown:
        raise WeightsError(
            f"{said} does not fit the network: {len(placed.unknown)} of its arrays have no place in it, such as "
            f"{brief(list(placed.unknown))}."
        )
    if set(placed.additions) != set(layers):
        absent = [layer for layer in placed.additions if f"{layer}.weight" not in parameters]
        if absent:
            raise WeightsError(f"{said} does not fit the network, which has no layers {brief(absent)}.")
        raise WeightsError(
            f"{said} has additions to {len(placed.additions)} layers, and model.lora.layers=[{','.join(lora.layers)}] "
            f"to {len(layers)}. Type 'model.lora.layers=[{','.join(patterns_of(placed.additions, parameters))}]'."
        )
    values = {f"{layer}.{name}": array for layer, pair in placed.additions.items() for name, array in pair.items()}
    anew = []
    heads = re.compile(rf"(.*\.)?({placed.family.own_heads})")
    for name, array in placed.whole.items():
        own = tuple(parameters[name].shape) if name in parameters else ()
        if own != array.shape and own[1:] == array.shape[1:] and heads.fullmatch(name):
            anew.append(name)  # of another number of classes, as in other files of weights
        else:
            values[name] = array
    lacking = [f"{layer}.{name}" for layer in layers for name in (A, B) if f"{layer}.{name}" not in values]
    wrong = [name for name in values if name not in parameters or tuple(parameters[name].shape) != values[name].shape]
    if lacking or wrong:
        name = (lacking or wrong)[0]
        ours = tuple(parameters[name].shape) if name in parameters else "no array"
        theirs = values[name].shape if name in values else "no array"
        raise WeightsError(f"{said} does not fit the network: '{name}' is {ours} there, and {theirs} in the file.")
    for name, array in values.items():
        if not np.isfinite(array).all():
            raise WeightsError(f"{said} holds values that are not finite in '{name}'.")
    from mxtrain.engine.backend import nd

    for name, array in values.items():
        parameters[name].set_data(nd.array(array, dtype=parameters[name].dtype))
    remarks = [f"adapter of PEFT: additions to {len(layers)} layers from {adapter.path}"]
    if adapter.base:
        remarks.append(f"its {ADAPTER_CONFIG} says that it was trained on {adapter.base}: not compared")
    in_full = [name for name in values if name in placed.whole]
    if in_full:
        remarks.append(f"{len(in_full)} arrays of the adapter replace those of the weights: {brief(in_full)}")
    frozen = [name for name in in_full if name not in added.trained]
    if frozen:
        remarks.append(f"{len(frozen)} of them are frozen, unless model.lora.train names them: {brief(frozen)}")
    if anew:
        remarks.append(f"{len(anew)} of the adapter not used, for another number of classes: {brief(anew)}")
    return remarks


def patterns_of(layers: Collection[str], names: Collection[str] = ()) -> List[str]:
    """Returns patterns for `model.lora.layers` that match these layers, and no others of a network.

    Args:
        layers: structural names of layers.
        names: names of all parameters of the network; empty if they are not known.
    """
    patterns: List[str] = []
    for end in sorted({layer.rpartition(".")[2] for layer in layers}):
        own = sorted(layer for layer in layers if layer.rpartition(".")[2] == end)
        same = [name for name in names if name.endswith(f".{end}.weight")]
        is_all = len(same) in (0, len(own)) and not end.isdigit()
        patterns += [f"*.{end}"] if is_all else own
    return patterns


def is_adapter(path: Union[str, Path]) -> bool:
    """Returns True for a file whose name begins with adapter_model, and which has adapter_config.json beside it."""
    path = Path(path)
    return path.name.startswith("adapter_model") and (path.parent / ADAPTER_CONFIG).exists()
