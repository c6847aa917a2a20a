"""BERT of transformers in `model=bert`: the encoder, pooler, masked-LM head, and heads for classes, tags and answers.

Its GELU is the erf form, as ours; its epsilon is 1e-12. The output layer of masked LM is the embedding in both.

Source: transformers 5.24.0, models/bert/modeling_bert.py.
"""

from __future__ import annotations

from mxtrain.model.foreign.encoders import CELL, check_encoder, encoder_settings
from mxtrain.model.foreign.table import Family, FamilyTable, Rule, layer, norm, rules

LAYER = r"encoder\.layer\.(\d+)"

TABLE = FamilyTable(
    "model=bert",
    rules(
        Rule(r"embeddings\.word_embeddings\.weight", "word_embed.0.weight"),
        Rule(r"embeddings\.token_type_embeddings\.weight", "token_type_embed.0.weight"),
        Rule(r"embeddings\.position_embeddings\.weight", "encoder.position_weight"),
        Rule(r"embeddings\.(position|token_type)_ids", ""),
        norm(r"embeddings\.LayerNorm", "encoder.layer_norm"),
        layer(rf"{LAYER}\.attention\.self\.(query|key|value)", f"{CELL}.attention_cell.proj_{{1}}"),
        layer(rf"{LAYER}\.attention\.output\.dense", f"{CELL}.proj"),
        norm(rf"{LAYER}\.attention\.output\.LayerNorm", f"{CELL}.layer_norm"),
        layer(rf"{LAYER}\.intermediate\.dense", f"{CELL}.ffn.ffn_1"),
        layer(rf"{LAYER}\.output\.dense", f"{CELL}.ffn.ffn_2"),
        norm(rf"{LAYER}\.output\.LayerNorm", f"{CELL}.ffn.layer_norm"),
        layer(r"pooler\.dense", "pooler"),
        layer(r"cls\.predictions\.transform\.dense", "decoder.0"),
        norm(r"cls\.predictions\.transform\.LayerNorm", "decoder.2"),
        Rule(r"cls\.predictions\.bias", "decoder.3.bias"),
        Rule(r"cls\.predictions\.decoder\.(weight|bias)", ""),
        layer(r"(?:classifier|qa_outputs)", "classifier.1"),
    ),
    check=check_encoder(
        epsilon=1e-12,
        activation="hidden_act",
        heads="num_attention_heads",
        tied=("cls.predictions.decoder.weight", "embeddings.word_embeddings.weight"),
    ),
)

FAMILY = Family(
    name="BERT of transformers",
    mark=r"embeddings\.token_type_embeddings\.weight",
    tables=(TABLE,),
    settings=encoder_settings(LAYER, "intermediate.dense"),
    prefixes=("bert.",),
    heads=r"(cls|pooler|classifier|qa_outputs)\..*",
    own_heads=r"(pooler|decoder\.\d|classifier\.1)\..*",
    model_types=("bert",),
    task_heads={
        "SEQ_CLS": ("bert.pooler.dense", "classifier"),
        "TOKEN_CLS": ("classifier",),
        "QUESTION_ANS": ("qa_outputs",),
    },
    looks_like=lambda arrays: len(arrays["embeddings.token_type_embeddings.weight"]) > 1,
)
