"""GPT-2 of transformers in `model=gpt`.

Dense layers are `Conv1D` there, with weights (in, out), so they are transposed. Queries, keys and values lie one after
the other in both. The tanh form of GELU (gelu_new) is model.gelu=tanh, the default of `model=gpt`; epsilon is 1e-5.
The output layer is the embedding in both. Causal masks (`attn.bias`) of older files are not needed.

Source: transformers 5.24.0, models/gpt2/modeling_gpt2.py.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, List, Mapping

from mxtrain.model.foreign.encoders import HEAD_WIDTH, count_layers, overrides, require_heads, require_tied
from mxtrain.model.foreign.table import Config, DoesNotFit, Family, FamilyTable, Rule, layer, norm, rules, transposed
from mxtrain.model.graph.trace import blocks_by_path

if TYPE_CHECKING:
    import numpy as np
    from mxnet import gluon

LAYER = r"h\.(\d+)"
FORMS = {"gelu_new": "tanh", "gelu_pytorch_tanh": "tanh", "gelu_fast": "tanh", "gelu": "erf"}
"""activation_function of config.json -> model.gelu."""
EPSILON = 1e-5
TIED = ("lm_head.weight", "wte.weight")
DEFAULTS = {"scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False, "add_cross_attention": False}


def _check(arrays: Mapping[str, np.ndarray], network: gluon.Block, config: Config) -> List[str]:
    act = config.get("activation_function", "gelu_new")
    form = FORMS.get(act)
    if form is None:
        raise DoesNotFit(f"config.json says activation_function={act}; the network has {', '.join(FORMS)}.")
    eps = float(config.get("layer_norm_epsilon", EPSILON))
    if not math.isclose(eps, EPSILON, rel_tol=1e-6):
        raise DoesNotFit(f"config.json says layer_norm_epsilon={eps:g}, and the network has {EPSILON:g}.")
    for name, value in DEFAULTS.items():
        if config.get(name, value) != value:
            raise DoesNotFit(f"config.json says {name}={config[name]}; the network computes {value} only.")
    for _, block in blocks_by_path(network):
        require_heads(block, config, "n_head")
        own = getattr(block, "_gelu", form)
        if own != form:
            raise DoesNotFit(
                f"its GELU is of the {form} form, and that of the network of the {own} form. Type model.gelu={form}."
            )
    require_tied(arrays, TIED)
    if config:
        return []
    return ["no config.json beside it: epsilon 1e-05, GELU's tanh form and the number of heads were not compared"]


def _settings(arrays: Mapping[str, np.ndarray], config: Config) -> str:
    length, units = arrays["wpe.weight"].shape if "wpe.weight" in arrays else (1024, arrays["wte.weight"].shape[1])
    heads = config.get("n_head", max(1, units // HEAD_WIDTH))
    found = {
        "num_layers": count_layers(arrays, LAYER),
        "units": units,
        "num_heads": heads,
        "max_length": length,
    }
    form = FORMS.get(config.get("activation_function", "gelu_new"), "tanh")
    if form != "tanh":
        found["gelu"] = form
    return overrides("gpt", found)


FAMILY = Family(
    name="GPT-2 of transformers",
    mark=r"h\.0\.attn\.c_attn\.weight",
    tables=(
        FamilyTable(
            "model=gpt",
            rules(
                Rule(r"wte\.weight", "embedding.weight"),
                Rule(r"wpe\.weight", "positions.weight"),
                norm(rf"{LAYER}\.ln_1", "layers.{0}.attention_norm"),
                layer(rf"{LAYER}\.attn\.c_attn", "layers.{0}.qkv", transposed),
                layer(rf"{LAYER}\.attn\.c_proj", "layers.{0}.projection", transposed),
                norm(rf"{LAYER}\.ln_2", "layers.{0}.ffn_norm"),
                layer(rf"{LAYER}\.mlp\.c_fc", "layers.{0}.ffn_1", transposed),
                layer(rf"{LAYER}\.mlp\.c_proj", "layers.{0}.ffn_2", transposed),
                norm(r"ln_f", "norm"),
                Rule(rf"{LAYER}\.attn\.(masked_)?bias", ""),
                Rule(r"lm_head\.weight", ""),
            ),
            check=_check,
        ),
    ),
    settings=_settings,
    prefixes=("transformer.",),
    heads=r"(score|classifier)\..*",
    own_heads=r"$^",
    task_heads={"CAUSAL_LM": ()},
)
