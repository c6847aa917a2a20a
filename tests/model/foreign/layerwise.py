"""Compares a network of ours with one of PyTorch, layer by layer, after an import of its weights."""

from __future__ import annotations

import numpy as np

from mxtrain.engine.backend import nd
from mxtrain.model.foreign.importing import import_foreign
from mxtrain.model.graph.trace import blocks_by_path
from mxtrain.model.weights import load_weights


def as_numpy(output):
    output = output[0] if isinstance(output, (list, tuple)) else output
    return output.asnumpy() if hasattr(output, "asnumpy") else output.detach().numpy().copy()


def pairs_of_layers(network, path):
    """Their layer -> ours, for layers with parameters of their own, by the table of names."""
    blocks = dict(blocks_by_path(network))
    pairs = {}
    for ours, theirs in import_foreign(path, network).names.items():
        if ours.rpartition(".")[0] in blocks and ours.endswith((".weight", ".gamma")):
            pairs[theirs.rpartition(".")[0]] = ours.rpartition(".")[0]
    return pairs


def differences(theirs, network, path, inputs, call, more=None, skip=(), keep_BT=None):
    """Loads the file, runs both networks and compares the outputs of their layers.

    Args:
        theirs: network of PyTorch, in evaluation mode.
        network: ours, initialised, not hybridized.
        path: the file.
        inputs: NumPy arrays for ours.
        call: runs their network and returns its output.
        more: further pairs of layers, such as blocks without parameters of their own.
        skip: their layers whose activation is a part of ours.
        keep_BT: positions to compare; padding is computed in other ways.

    Returns:
        Their layer -> largest difference relative to the largest value (1 at least), with "output" of the network; for
        images also "NAME alone", of the layer with their input, relative to the largest value of its output; and the
        report.
    """
    import torch

    report = load_weights(network, path)
    pairs = {**pairs_of_layers(network, path), **(more or {})}
    modules, blocks = dict(theirs.named_modules()), dict(blocks_by_path(network))
    found = {"theirs": {}, "ours": {}, "input": {}}

    def keep(side, name):
        def hook(_, given, output):
            found[side][name] = as_numpy(output)
            if side == "theirs" and given and given[0].ndim == 4:
                found["input"][name] = as_numpy(given[0])

        return hook

    for their_path, our_path in pairs.items():
        if their_path not in skip:
            modules[their_path].register_forward_hook(keep("theirs", their_path))
            blocks[our_path].register_forward_hook(keep("ours", their_path))
    found["theirs"]["output"] = as_numpy(call(theirs))
    found["ours"]["output"] = as_numpy(network(*(nd.array(array) for array in inputs)))
    for name, given in found["input"].items():
        block = blocks[pairs[name]]
        if list(block._reg_params) and isinstance(found["ours"][name], np.ndarray) and found["ours"][name].ndim == 4:
            found["ours"][f"{name} alone"] = as_numpy(block(nd.array(given)))
    for key, output in found["ours"].items():
        name = key.replace(" alone", "")
        if type(modules.get(name)).__name__ == "BatchNormAct2d":  # of timm, which holds the activation, too
            found["ours"][key] = modules[name].act(torch.tensor(output)).numpy()
    assert {name for name in found["ours"] if not name.endswith(" alone")} == set(found["theirs"])
    assert set(found["theirs"]) >= set(pairs) - set(skip)
    result = {}
    for key, value in found["ours"].items():
        alone = key.endswith(" alone")
        expected = found["theirs"][key.replace(" alone", "")]
        result[key] = distance(value, expected, keep_BT, 1e-30 if alone else 1.0)
    return result, report


def distance(ours, theirs, keep_BT=None, at_least=1.0):
    if ours.ndim == 3 and (ours.shape != theirs.shape):
        ours = ours.transpose(1, 0, 2)  # our encoders have time first
        theirs = np.broadcast_to(theirs, ours.shape)
    if keep_BT is not None and ours.ndim == 3:
        ours, theirs = ours * keep_BT[..., None], theirs * keep_BT[..., None]
    assert ours.size == theirs.size, (ours.shape, theirs.shape)
    return float(np.abs(ours.reshape(theirs.shape) - theirs).max() / max(at_least, np.abs(theirs).max()))


def randomised(network, seed=0):
    """A network of PyTorch whose statistics, scales and biases are random too, in evaluation mode."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, value in network.state_dict().items():
            if name.endswith("running_var"):
                value.copy_(torch.rand(value.shape, generator=generator) + 0.5)
            elif value.dtype == torch.float32 and value.ndim == 1:
                value.add_(torch.randn(value.shape, generator=generator) * 0.1)
    return network.eval()
