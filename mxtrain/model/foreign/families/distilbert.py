"""DistilBERT of transformers in `model=bert` with 6 layers.

It has no types of tokens, so ours have rows of zeros, and no pooler: its head for classes has a ReLU in its place, so
that head is not used.

Source: transformers 5.24.0, models/distilbert/modeling_distilbert.py.
"""

from __future__ import annotations

from typing import Mapping, Tuple

from mxtrain.model.foreign.encoders import CELL, check_encoder, encoder_settings
from mxtrain.model.foreign.table import Arrays, Family, FamilyTable, Rule, layer, norm, rules

LAYER = r"transformer\.layer\.(\d+)"
PROJECTIONS = {"q": "query", "k": "key", "v": "value"}


def _add_token_types(arrays: Arrays, network: Mapping[str, Tuple[int, ...]]) -> None:
    import numpy as np

    for name, shape in network.items():
        if name.endswith("token_type_embed.0.weight"):
            arrays[name] = np.zeros(shape, "float32")


FAMILY = Family(
    name="DistilBERT of transformers",
    mark=r"transformer\.layer\.0\.attention\.q_lin\.weight",
    tables=(
        FamilyTable(
            "model=bert",
            rules(
                Rule(r"embeddings\.word_embeddings\.weight", "word_embed.0.weight"),
                Rule(r"embeddings\.position_embeddings\.weight", "encoder.position_weight"),
                Rule(r"embeddings\.position_ids", ""),
                norm(r"embeddings\.LayerNorm", "encoder.layer_norm"),
                layer(
                    rf"{LAYER}\.attention\.([qkv])_lin",
                    lambda number, one: f"{CELL.format(number)}.attention_cell.proj_{PROJECTIONS[one]}",
                ),
                layer(rf"{LAYER}\.attention\.out_lin", f"{CELL}.proj"),
                norm(rf"{LAYER}\.sa_layer_norm", f"{CELL}.layer_norm"),
                layer(rf"{LAYER}\.ffn\.lin1", f"{CELL}.ffn.ffn_1"),
                layer(rf"{LAYER}\.ffn\.lin2", f"{CELL}.ffn.ffn_2"),
                norm(rf"{LAYER}\.output_layer_norm", f"{CELL}.ffn.layer_norm"),
                layer(r"vocab_transform", "decoder.0"),
                norm(r"vocab_layer_norm", "decoder.2"),
                Rule(r"vocab_projector\.bias", "decoder.3.bias"),
                Rule(r"vocab_projector\.weight", ""),
                layer(r"qa_outputs", "classifier.1"),
            ),
            complete=_add_token_types,
            check=check_encoder(
                epsilon=1e-12,
                activation="activation",
                heads="n_heads",
                tied=("vocab_projector.weight", "embeddings.word_embeddings.weight"),
            ),
        ),
    ),
    settings=encoder_settings(LAYER, "ffn.lin1"),
    prefixes=("distilbert.",),
    heads=r"(vocab_\w+|pre_classifier|classifier|qa_outputs)\..*",
    own_heads=r"(pooler|decoder\.\d|classifier\.1)\..*",
    model_types=("distilbert",),
    task_heads={"QUESTION_ANS": ("qa_outputs",)},
)
