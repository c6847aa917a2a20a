"""A model of a Triton model repository.

    NAME/config.pbtxt       inputs, outputs, dynamic batching
    NAME/labels.txt         names of classes, for Triton's classification extension
    NAME/1/                 the exported folder: Triton reads model.onnx and ignores the rest

Source of the fields: triton-inference-server/common, protobuf/model_config.proto, message ModelConfig.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import List, Sequence

from mxtrain.exporting.deploy.tensors import Tensor
from mxtrain.files.durable import replace_file

CONFIG, LABELS = "config.pbtxt", "labels.txt"
MAX_BATCH_SIZE, QUEUE_DELAY_US, QUEUE_SIZE = 32, 2000, 256
TYPES = {
    "float16": "TYPE_FP16",
    "float32": "TYPE_FP32",
    "float64": "TYPE_FP64",
    "uint8": "TYPE_UINT8",
    "int8": "TYPE_INT8",
    "int32": "TYPE_INT32",
    "int64": "TYPE_INT64",
    "bool": "TYPE_BOOL",
}
CLASSES = "probabilities"
"""The output whose numbers are those of classes."""


def write(
    folder: Path, name: str, inputs: Sequence[Tensor], outputs: Sequence[Tensor], class_names: Sequence[str]
) -> None:
    """Writes the configuration of a model into its folder of a repository."""
    has_labels = bool(class_names) and any(one.name == CLASSES for one in outputs)
    # The file has one label a line: a line break in a name would shift the names of all later classes.
    has_labels = has_labels and not any("\n" in label for label in class_names)
    replace_file(folder / CONFIG, config(name, inputs, outputs, has_labels).encode())
    if has_labels:
        replace_file(folder / LABELS, "".join(f"{label}\n" for label in class_names).encode())


def config(name: str, inputs: Sequence[Tensor], outputs: Sequence[Tensor], has_labels: bool = False) -> str:
    """Returns the text of config.pbtxt.

    Args:
        name: name of the model and of its folder.
        inputs: of the network; Triton makes batches if all inputs and outputs begin with an open one.
        outputs: of the network.
        has_labels: whether labels.txt holds the names of classes.
    """
    is_batched = all(one.is_batch for one in (*inputs, *outputs))
    lines = [
        f"name: {json.dumps(name)}",
        'backend: "onnxruntime"',
        f"max_batch_size: {MAX_BATCH_SIZE if is_batched else 0}",
    ]
    for kind, tensors in (("input", inputs), ("output", outputs)):
        for one in tensors:
            label = f'  label_filename: "{LABELS}"' if has_labels and one.name == CLASSES else ""
            lines += [f"{kind} {{", *_tensor(one, is_batched), *([label] if label else []), "}"]
    lines += ["instance_group {", "  count: 1", "  kind: KIND_CPU", "}"]
    if is_batched:
        lines += [
            "dynamic_batching {",
            f"  max_queue_delay_microseconds: {QUEUE_DELAY_US}",
            "  default_queue_policy {",
            f"    max_queue_size: {QUEUE_SIZE}",
            "  }",
            "}",
        ]
    return "\n".join([*lines, ""])


def _tensor(one: Tensor, is_batched: bool) -> List[str]:
    sizes = one.shape[1:] if is_batched else one.shape
    lines = [f"  name: {json.dumps(one.name)}", f"  data_type: {TYPES[one.dtype]}"]
    # A list of no dimensions is refused; this is how Triton writes one number for each sample.
    return [*lines, f"  dims: {list(sizes)}"] if sizes else [*lines, "  dims: [1]", "  reshape { shape: [] }"]
