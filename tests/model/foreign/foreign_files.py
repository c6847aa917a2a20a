"""Writes safetensors files as their description says, without the package."""

import json
import struct

import numpy as np

TYPES = {"float32": "F32", "float16": "F16", "int64": "I64", "uint8": "U8", "bool": "BOOL"}


def content_of(arrays, header=None, data=None):
    """The bytes of a file; `header` changes entries, `data` replaces the elements."""
    entries, parts, position = {}, [], 0
    for name, array in arrays.items():
        part = np.ascontiguousarray(array).tobytes()
        kind = TYPES[str(array.dtype)]
        entries[name] = {"dtype": kind, "shape": list(array.shape), "data_offsets": [position, position + len(part)]}
        parts.append(part)
        position += len(part)
    entries.update(header or {})
    text = json.dumps({"__metadata__": {"format": "pt"}, **entries}).encode()
    return struct.pack("<Q", len(text)) + text + (b"".join(parts) if data is None else data)


def write(path, arrays, config=None):
    """Writes a file, and config.json beside it; returns the path."""
    path.write_bytes(content_of(arrays))
    if config is not None:
        path.with_name("config.json").write_text(json.dumps(config))
    return path


def random_arrays(shapes, seed=0):
    generator = np.random.RandomState(seed)
    return {name: generator.standard_normal(shape).astype("float32") for name, shape in shapes.items()}


def bert_shapes(vocab=9, units=8, hidden=16, layers=1, length=6, types=2):
    """Names and shapes of transformers' BertModel."""
    shapes = {
        "embeddings.word_embeddings.weight": (vocab, units),
        "embeddings.position_embeddings.weight": (length, units),
        "embeddings.token_type_embeddings.weight": (types, units),
        "embeddings.LayerNorm.weight": (units,),
        "embeddings.LayerNorm.bias": (units,),
    }
    for number in range(layers):
        start = f"encoder.layer.{number}"
        dense = {
            "attention.self.query": (units, units),
            "attention.self.key": (units, units),
            "attention.self.value": (units, units),
            "attention.output.dense": (units, units),
            "intermediate.dense": (hidden, units),
            "output.dense": (units, hidden),
        }
        for name, shape in dense.items():
            shapes.update({f"{start}.{name}.weight": shape, f"{start}.{name}.bias": shape[:1]})
        for name in ("attention.output.LayerNorm", "output.LayerNorm"):
            shapes.update({f"{start}.{name}.weight": (units,), f"{start}.{name}.bias": (units,)})
    return shapes


BERT_CONFIG = {"model_type": "bert", "num_attention_heads": 2, "layer_norm_eps": 1e-12, "hidden_act": "gelu"}
