"""Channels removed from every kind of network: `callback=prune_channels`, then `mxtrain slim`, `eval`, `predict`,
`export`."""

from __future__ import annotations

import json
import re
import shutil
import warnings
from pathlib import Path
from typing import Any, Callable, Dict, Tuple

import numpy as np
import pytest
import running
from gluoncv_families import CLASSIFIERS
from small_runs import CASES, SHORT, classifier_words, with_data, write_data

import mxtrain
from mxtrain.cli.dispatch import run
from mxtrain.model.graph.channels import find_channels
from mxtrain.model.graph.shapes import infer_shapes
from mxtrain.model.parameters import distinct_parameters
from mxtrain.model.widths import set_widths

PRUNED = (
    "callback=prune_channels",
    "callback.prune_channels.start=0",
    "callback.prune_channels.end=0.5",
    "callback.prune_channels.every_steps=1",
)
REFUSED = {
    "factorization_machine": "the channels of 'linear.number' are outputs of the network",
    "bilstm": "the channels of 'output' are outputs of the network; the units of recurrent layers and embeddings",
    "bilstm, texts": "the channels of 'output' are outputs of the network; the units of recurrent layers and",
    "bilstm, questions": "the units of recurrent layers and embeddings cannot be removed",
    "lstm": "the network carries state from batch to batch",
    "fism": "no convolution and no dense layer; the units of embeddings cannot be removed",
    "svd_pp": "no convolution and no dense layer; the units of embeddings cannot be removed",
    "matrix_factorization": "no convolution and no dense layer; the units of embeddings cannot be removed",
    "gru4rec": "the channels of 'dense' are read by SequenceLast in the ItemScores 'output'; the units of recurrent",
    "gnmt": "the channels of 'keys' are read by batch_dot in the SourceAttention 'attention'; the units of recurrent",
}
"""Networks without removable channels, and what the message says."""
REFUSED_FAMILIES = {"resnet50_v1b_gn": "are read by Reshape in the GroupNorm"}
USUAL = ("gpt",)
"""Cases of all test runs but the quick one, without the export, which takes longest; the others are in the zoo."""

pytestmark = pytest.mark.usefixtures("own_cache")


def nets() -> Dict[str, Callable[[], Any]]:
    """Name -> a small network with one way in which channels depend on each other."""
    from mxtrain.engine.backend import gluon, mx

    nn = gluon.nn

    class Excited(gluon.HybridBlock):
        """Squeeze-and-excitation, and a dense layer behind Flatten."""

        def __init__(self) -> None:
            super().__init__()
            with self.name_scope():
                self.first, self.norm = nn.Conv2D(8, 3, padding=1), nn.BatchNorm()
                self.pool = nn.GlobalAvgPool2D()
                self.squeeze, self.excite = nn.Conv2D(4, 1), nn.Conv2D(8, 1)
                self.flat, self.dense, self.out = nn.Flatten(), nn.Dense(6), nn.Dense(3)

        def hybrid_forward(self, F: Any, x: Any) -> Any:
            x = self.norm(self.first(x))
            x = F.broadcast_mul(x, F.sigmoid(self.excite(F.relu(self.squeeze(self.pool(x))))))
            x = F.contrib.AdaptiveAvgPooling2D(x, output_size=3)
            return self.out(F.relu(self.dense(self.flat(x))))

    class Shared(gluon.HybridBlock):
        """Two layers with one weight, called on two feature maps, as the heads of detectors."""

        def __init__(self) -> None:
            super().__init__()
            with self.name_scope():
                self.first, self.second = nn.Conv2D(6, 3, padding=1), nn.Conv2D(6, 3, padding=1, strides=2)
                self.head = nn.Conv2D(5, 1)
                self.twin = nn.Conv2D(5, 1, params=self.head.params)
                self.out = nn.Conv2D(2, 1)

        def hybrid_forward(self, F: Any, x: Any) -> Any:
            x = F.relu(self.first(x))
            maps = self.out(F.relu(self.head(x))), self.out(F.relu(self.twin(self.second(x))))
            return F.concat(*map(F.flatten, maps), dim=1)

    def in_graph() -> gluon.HybridSequential:
        """A depthwise convolution, a grouped one, a concatenation and a batch norm in a SymbolBlock."""
        with mx.name.Prefix("part_"):
            layers = [
                nn.Conv2D(8, 3, padding=1, prefix="first_"),
                nn.BatchNorm(prefix="norm_"),
                nn.Conv2D(8, 3, padding=1, groups=8, in_channels=8, prefix="depth_"),
                nn.Conv2D(4, 3, padding=1, groups=2, prefix="grouped_"),
                nn.Conv2D(6, 1, prefix="other_"),
            ]
            x = mx.sym.var("data")
            for layer in layers[:3]:
                x = layer(x)
            x = mx.sym.concat(layers[3](x), mx.sym.relu(layers[4](x)), dim=1)
        net = gluon.nn.HybridSequential(prefix="")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it doubts the type of the data, and takes float32
            net.add(gluon.SymbolBlock(x, [mx.sym.var("data")]), nn.Dense(3, prefix="out_"))
        return net

    return {"squeeze-and-excitation": Excited, "shared weights": Shared, "SymbolBlock": in_graph}


@pytest.mark.parametrize(
    "name, layers",
    [
        ("squeeze-and-excitation", {"first", "excite", "squeeze", "dense"}),
        ("shared weights", {"first", "second", "head"}),
        ("SymbolBlock", {"0.first", "0.depth", "0.grouped", "0.other"}),
    ],
)
def test_smaller_network_computes_the_same(name: str, layers: set) -> None:
    import mxnet as mx

    shape, rng = (1, 6, 6), np.random.default_rng(0)
    network = nets()[name]()
    infer_shapes(network, shape)
    network.initialize(mx.init.Normal(0.5))
    channels = find_channels(network, shape)
    assert set(channels.widths) == layers
    gone = sorted(
        int(number)
        for group in range(len(channels.groups))
        for number in rng.permutation([n for n, one in enumerate(channels.sets) if one.group == group])[:-1:2]
    )
    arrays = {name: one.data().asnumpy() for name, one in distinct_parameters(network).items()}
    for number in gone:
        for weight, axis, index in channels.sets[number].read:
            np.moveaxis(arrays[weight], axis, 0)[index] = 0
    assert set(gone) <= set(channels.removable(arrays))
    for weight, parameter in distinct_parameters(network).items():
        parameter.set_data(mx.nd.array(arrays[weight]))
    x = mx.nd.array(rng.normal(size=(3, *shape)))
    expected = network(x).asnumpy()
    kept, widths = channels.without(arrays, gone)
    assert set(widths) == layers
    small = nets()[name]()
    infer_shapes(small, shape)
    set_widths(small, widths)
    infer_shapes(small, shape)
    small.initialize()
    for weight, parameter in distinct_parameters(small).items():
        assert parameter.shape == kept[weight].shape
        parameter.set_data(mx.nd.array(kept[weight]))
    sizes = [sum(p.data().size for p in one.collect_params().values()) for one in (small, network)]
    assert sizes[0] < 0.9 * sizes[1]
    np.testing.assert_allclose(small(x).asnumpy(), expected, rtol=1e-4, atol=1e-5)


def cut(folder: Path, *overrides: str, exit_code: int = 0) -> Tuple[Path, str]:
    """Trains for two steps with channel pruning; returns the run directory and what was printed."""
    write_data(folder)
    words = (*SHORT, *with_data(overrides, folder), *PRUNED)
    return folder / "run", running.train_here(folder / "run", *words, exit_code=exit_code)


def require_slim(run_dir: Path, capsys: Any, *, exports: bool = True) -> None:
    """The smaller network computes the same, and its folder is evaluated, predicts and is exported alone."""
    capsys.readouterr()
    assert run(["slim", str(run_dir), "which=last"]) == 0, capsys.readouterr().err
    said = capsys.readouterr().out
    parameters = re.search(r"parameters: ([\d,]+) -> ([\d,]+) ", said)
    error = re.search(r"relative difference of the outputs: (\S+)", said)
    assert parameters and error and float(error[1]) < 1e-4
    before, after = (int(number.replace(",", "")) for number in parameters.groups())
    assert after < before
    metrics = mxtrain.load(run_dir, which="last").evaluate(split="val", limit_batches=1)
    metrics.pop("samples_per_s")
    shutil.move(run_dir / "slim", run_dir.parent / "alone")
    shutil.rmtree(run_dir)
    alone = run_dir.parent / "alone"
    assert run(["eval", str(alone), "split=val", "limit_batches=1"]) == 0
    found = json.loads((alone / "eval" / "val" / "metrics.json").read_text())
    assert {name: found[name] for name in metrics} == pytest.approx(metrics, rel=1e-4, abs=1e-6)
    capsys.readouterr()
    code = run(["predict", str(alone), "sample=2"])
    said = capsys.readouterr()
    # Tasks without predictions for files say so.
    assert code == 0 or "has nothing to say of single files" in said.err or "is for tasks that predict" in said.err
    if exports:
        assert run(["export", str(alone), "limit_batches=1"]) == 0, capsys.readouterr().err


@pytest.mark.zoo
@pytest.mark.slow
@pytest.mark.parametrize("name", [pytest.param(name, marks=() if name in USUAL else pytest.mark.zoo) for name in CASES])
def test_every_model_is_slimmed_or_refused_with_a_reason(name: str, tmp_path: Path, capsys: Any) -> None:
    if name in REFUSED:
        _, said = cut(tmp_path, *CASES[name], exit_code=2)
        assert REFUSED[name] in said and "Traceback" not in said
    else:
        require_slim(cut(tmp_path, *CASES[name])[0], capsys, exports=name not in USUAL)


@pytest.mark.slow
@pytest.mark.zoo
@pytest.mark.parametrize("name", CLASSIFIERS)
def test_every_gluoncv_family_is_slimmed_or_refused_with_a_reason(name: str, tmp_path: Path, capsys: Any) -> None:
    if name in REFUSED_FAMILIES:
        _, said = cut(tmp_path, *classifier_words(name), exit_code=2)
        assert REFUSED_FAMILIES[name] in said
    else:
        require_slim(cut(tmp_path, *classifier_words(name))[0], capsys)
