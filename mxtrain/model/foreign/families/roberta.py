"""RoBERTa of transformers (also XLM-RoBERTa and CamemBERT) in `model=bert` with layer_norm_eps=1e-5.

Its positions count from 2 (the index of padding plus 1), so the first two rows of the table are of no token. It has one
type of tokens, whose row ours has twice. Its head for classes is a pooler and an output layer under other names.

Source: transformers 5.24.0, models/roberta/modeling_roberta.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mxtrain.model.foreign.encoders import check_encoder, encoder_settings
from mxtrain.model.foreign.families.bert import LAYER, TABLE
from mxtrain.model.foreign.table import Family, FamilyTable, Rule, layer, norm, rules

if TYPE_CHECKING:
    import numpy as np

NUM_UNUSED_POSITIONS = 2


def _used_positions(array: np.ndarray) -> np.ndarray:
    return array[NUM_UNUSED_POSITIONS:]


def _both_types(array: np.ndarray) -> np.ndarray:
    return array.repeat(2, axis=0) if len(array) == 1 else array


FAMILY = Family(
    name="RoBERTa of transformers",
    mark=r"embeddings\.token_type_embeddings\.weight",
    tables=(
        FamilyTable(
            "model=bert",
            rules(
                Rule(r"embeddings\.position_embeddings\.weight", "encoder.position_weight", _used_positions),
                Rule(r"embeddings\.token_type_embeddings\.weight", "token_type_embed.0.weight", _both_types),
                layer(r"classifier\.dense", "pooler"),
                layer(r"classifier\.out_proj", "classifier.1"),
                layer(r"lm_head\.dense", "decoder.0"),
                norm(r"lm_head\.layer_norm", "decoder.2"),
                Rule(r"lm_head\.bias", "decoder.3.bias"),
                Rule(r"lm_head\.decoder\.(weight|bias)", ""),
                *(rule for rule in TABLE.rules if not rule.pattern.startswith("cls")),
            ),
            check=check_encoder(
                epsilon=1e-5,
                activation="hidden_act",
                heads="num_attention_heads",
                tied=("lm_head.decoder.weight", "embeddings.word_embeddings.weight"),
            ),
        ),
    ),
    settings=encoder_settings(LAYER, "intermediate.dense", NUM_UNUSED_POSITIONS, epsilon=1e-5),
    prefixes=("roberta.",),
    heads=r"(lm_head|pooler|classifier|qa_outputs)\..*",
    own_heads=r"(pooler|decoder\.\d|classifier\.1)\..*",
    model_types=("roberta", "xlm-roberta", "camembert"),
    task_heads={
        "SEQ_CLS": ("classifier.dense", "classifier.out_proj"),
        "TOKEN_CLS": ("classifier",),
        "QUESTION_ANS": ("qa_outputs",),
    },
    looks_like=lambda arrays: len(arrays["embeddings.token_type_embeddings.weight"]) == 1,
)
