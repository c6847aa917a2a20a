"""The README of a folder for PyTorch."""

from __future__ import annotations

from typing import Any, List, Mapping

from mxtrain.exporting import standalone


def card(signature: Mapping[str, Any], facts: Mapping[str, Any], proof: Mapping[str, Any]) -> str:
    """Returns README.md: how the network is loaded, what was proven, and what differs in training.

    Args:
        signature: content of signature.json.
        facts: facts about the checkpoint.
        proof: content of proof.json.
    """
    tuned, gradients = proof["fine_tuning"], proof["gradients"]
    exported = "succeeds" if proof["torch_export"] is True else f"does not succeed: {proof['torch_export']}"
    lines: List[str] = [
        f"# {facts['model']} for {signature['task'] or 'a task of its own'}, in PyTorch",
        "",
        f"Of step {facts['step']} of a run on {facts['dataset']}.",
        "",
        "```python",
        "from model import Network",
        "from safetensors.torch import load_file",
        "",
        "network = Network()",
        'network.load_state_dict(load_file("model.safetensors"))',
        "```",
        "",
        "The network takes normalised inputs and returns its own outputs. `predict.py` reads files as the run did, "
        "normalises, and makes predictions:",
        "",
        "```",
        f"pip install torch safetensors numpy{' onnx2torch' if proof['through_onnx'] else ''}",
        "python predict.py --check    # repeats the proof of the outputs",
        "python predict.py FILE...",
        "```",
        "",
        standalone.describe_input(dict(signature)),
        "",
        "| output | relative error against MXNet |",
        "| --- | --- |",
        *(f"| {name} | {error:.1e} |" for name, error in proof["outputs"].items()),
        "",
        f"Proven with PyTorch {proof['versions']['torch']} for batches of {', '.join(map(str, proof['batch_sizes']))}:",
        "",
        f"- gradients of {gradients['compared']} parameters: relative error {gradients['largest_error']:.1e} "
        f"in {gradients['precision']}, of {proof['loss']};",
        f"- {tuned['steps']} steps of SGD with batches of {tuned['batch_size']}, without dropout, in both frameworks: "
        "the losses are in `proof.json`;",
        f"- `torch.export` {exported}.",
        *(f"- {remark}." for remark in proof["remarks"]),
        "",
        "Differences in training: PyTorch's batch normalisation keeps the unbiased variance, MXNet the biased one; "
        "MXNet's momentum of SGD holds the learning rate, so that curves differ after each change of it; MXNet's "
        "`Trainer` decays biases and scales, too.",
        "",
    ]
    return "\n".join(lines)
