"""Names and shapes of the arrays in GluonNLP's files of translation networks."""

from __future__ import annotations

import re
from typing import Dict, Mapping, Tuple

import numpy as np

PROJECTIONS: Dict[str, Dict[str, Tuple[str, ...]]] = {
    "attention_cell": {"qkv": ("query", "key", "value")},
    "attention_cell_in": {"qkv": ("query", "key", "value")},
    "attention_cell_inter": {"query": ("query",), "key_value": ("key", "value")},
}
"""Attention of GluonNLP's cells -> our dense layers, and the projections that each holds, one below the other."""
LAYERS = {
    "proj": "self_projection",
    "proj_in": "self_projection",
    "proj_inter": "cross_projection",
    "layer_norm": "self_norm",
    "layer_norm_in": "self_norm",
    "layer_norm_inter": "cross_norm",
    "ffn.ffn_1": "ffn_1",
    "ffn.ffn_2": "ffn_2",
    "ffn.layer_norm": "ffn_norm",
}
"""Layers of GluonNLP's cells -> ours."""
OUTSIDE = {
    "src_embed.0.weight": "embedding.weight",
    "tgt_embed.0.weight": "target_embedding.weight",
    "tgt_proj.weight": "table",
    "tgt_proj.bias": "output.bias",
    "encoder.layer_norm": "encoder_input_norm",
    "decoder.layer_norm": "decoder_input_norm",
}
"""Arrays and layers of GluonNLP's network outside of its cells -> ours."""


def arrays_of_gluonnlp(arrays: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
    """Returns the arrays of a file of GluonNLP's translation network under our names; those of another file unchanged.

    Queries, keys and values are one dense layer here, and layers without a bias get one that is 0. Sinusoids follow
    from the sizes, the decoder for single steps shares all arrays of the decoder, and equal tables are one: these are
    left out. An array without a counterpart keeps its name, so that the report of the weights lists it.

    Args:
        arrays: name in the file -> array.
    """
    if "src_embed.0.weight" not in arrays:
        return arrays
    converted: Dict[str, np.ndarray] = {}
    for name, array in arrays.items():
        layer, _, role = name.rpartition(".")
        cell = re.fullmatch(r"(encoder|decoder)\.transformer_cells\.(\d+)\.(.+)", layer)
        if role == "position_weight" or name.startswith("one_step_ahead_decoder."):
            continue
        if cell is None:
            converted[OUTSIDE.get(name) or (f"{OUTSIDE[layer]}.{role}" if layer in OUTSIDE else name)] = array
            continue
        ours = f"{cell[1]}.{cell[2]}"
        attention, _, projection = cell[3].partition(".proj_")
        if cell[3] in LAYERS:
            converted[f"{ours}.{LAYERS[cell[3]]}.{role}"] = array
        elif attention in PROJECTIONS and role == "weight" and projection:
            for dense, parts in PROJECTIONS[attention].items():
                names = [f"{layer.rpartition('_')[0]}_{part}.weight" for part in parts]
                if projection == parts[0] and all(part in arrays for part in names):
                    converted[f"{ours}.{dense}.weight"] = np.concatenate([arrays[part] for part in names])
        elif attention not in PROJECTIONS:
            converted[name] = array
    for name in list(converted):
        layer, _, role = name.rpartition(".")
        if re.search(r"\d\.(qkv|query|key_value|self_projection|cross_projection)$", layer) and role == "weight":
            converted.setdefault(f"{layer}.bias", np.zeros(len(converted[name]), converted[name].dtype))
    # Tables that share weights are in the file once for each of their names.
    for copy, first in (("table", "target_embedding.weight"), ("target_embedding.weight", "embedding.weight")):
        if copy in converted and first in converted and np.array_equal(converted[copy], converted[first]):
            del converted[copy]
    return converted
