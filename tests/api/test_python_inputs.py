"""Several inputs of a network in Python: tuples and dicts of arrays, as arrays and as items of datasets."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mxtrain
from mxtrain.errors import ConfigError, DataError

pytestmark = pytest.mark.slow
QUICK = ("trainer.max_epochs=2", "logger=[jsonl]", "lr_scheduler=constant", "dataset.batch_size=16")
RNG = np.random.default_rng(0)
LEFT = RNG.normal(size=(80, 4)).astype(np.float32)
RIGHT = RNG.integers(0, 256, (80, 2, 3), dtype=np.uint8)
Y = (LEFT[:, 0] + (RIGHT.mean(axis=(1, 2)) - 127) / 60 > 0).astype(int)


def network(mx: Any) -> Any:
    class Two(mx.gluon.HybridBlock):
        def __init__(self) -> None:
            super().__init__()
            with self.name_scope():
                self.left, self.right, self.out = (mx.gluon.nn.Dense(units) for units in (6, 5, 2))

        def hybrid_forward(self, F: Any, a: Any, b: Any) -> Any:
            return self.out(F.relu(F.concat(self.left(a), self.right(b), dim=1)))

    return Two()


class Items:
    """A dataset as Gluon's and PyTorch's, whose items hold dicts."""

    def __len__(self) -> int:
        return 80

    def __getitem__(self, index: int) -> Any:
        return {"a": LEFT[index], "b": RIGHT[index]}, Y[index]


@pytest.fixture(scope="module")
def trained(mx: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    run = mxtrain.train(
        *QUICK, model=network(mx), dataset=({"a": LEFT, "b": RIGHT}, Y), dir=tmp_path_factory.mktemp("inputs") / "run"
    )
    assert run.state == "finished", run.cause
    return run


def by_hand(run: Any, left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Probabilities by NumPy: uint8 inputs are standardised by all numbers of the training samples."""
    from scipy.special import softmax

    value = {name: one.data().asnumpy() for name, one in run.network._collect_params_with_prefix().items()}
    (_, mean), (_, std) = run.signature.mean, run.signature.std
    right = (right.reshape(len(right), -1) - mean) / std
    hidden = np.concatenate(
        [left @ value["left.weight"].T + value["left.bias"], right @ value["right.weight"].T + value["right.bias"]],
        axis=1,
    )
    return softmax(np.maximum(hidden, 0) @ value["out.weight"].T + value["out.bias"], axis=1)


def test_inputs_of_a_dict_are_trained_measured_and_predicted(trained: Any) -> None:
    index_N = np.concatenate([batch["index"] for batch in trained.batches("train")])
    batch = next(iter(trained.batches("train")))
    assert batch["input0"].shape[1:] == (4,) and batch["input1"].shape[1:] == (2, 3) and len(index_N) < 80
    assert trained.signature.mean[0] == 0.0 and trained.signature.std[0] == 1.0
    expected = by_hand(trained, LEFT, RIGHT)
    rows = trained.predict({"a": LEFT, "b": RIGHT})
    np.testing.assert_allclose(np.stack(rows.arrays), expected, atol=1e-5)
    assert trained.predict({"b": RIGHT, "a": LEFT}) == rows, "by name"
    assert trained.predict({"a": LEFT[3], "b": RIGHT[3]}) == rows[3:4]
    assert trained.predict([{"a": LEFT[index], "b": RIGHT[index]} for index in range(5)]) == rows[:5]
    measured = trained.evaluate(dataset=({"a": LEFT, "b": RIGHT}, Y))
    assert measured["accuracy"] == pytest.approx((expected.argmax(axis=1) == Y).mean())
    assert measured["loss"] == pytest.approx(-np.log(expected[np.arange(80), Y]).mean(), abs=1e-5)


def test_all_forms_give_the_same_run(trained: Any, mx: Any, tmp_path: Any) -> None:
    forms = {
        "items": Items(),
        "tuple": ((mx.nd.array(LEFT), RIGHT), Y),
        "gluon": mx.gluon.data.SimpleDataset([((LEFT[index], RIGHT[index]), Y[index]) for index in range(80)]),
    }
    expected = {name: value.data().asnumpy() for name, value in trained.network._collect_params_with_prefix().items()}
    for name, dataset in forms.items():
        run = mxtrain.train(*QUICK, model=network(mx), dataset=dataset, dir=tmp_path / name)
        assert run.state == "finished", run.cause
        for key, value in run.network._collect_params_with_prefix().items():
            np.testing.assert_array_equal(value.data().asnumpy(), expected[key])
    assert run.predict((LEFT, RIGHT)) == trained.predict({"a": LEFT, "b": RIGHT})


@pytest.mark.parametrize(
    "inputs, error, said",
    [
        (LEFT, ConfigError, "trained on the inputs a, b, and got ndarray. Give a dict of arrays with these names"),
        ({"a": LEFT}, ConfigError, r"got \['a'\]"),
        ({"a": LEFT, "c": RIGHT}, ConfigError, r"got \['a', 'c'\]"),
        ({"a": LEFT[:3], "b": RIGHT}, ConfigError, "the inputs have 3, 80 samples"),
        ({"a": RIGHT, "b": RIGHT}, ConfigError, r"input a, the inputs are uint8 \(80, 2, 3\)"),
        (
            {"a": LEFT, "b": RIGHT / 2},
            ConfigError,
            "input b, the inputs are float64, and this run was trained on uint8",
        ),
        ({"a": LEFT * np.nan, "b": RIGHT}, DataError, "input a, input 0 has a number that is not finite"),
        ([{"a": LEFT[0], "b": RIGHT[0]}, {"a": LEFT[0]}], ConfigError, "trained on the inputs a, b"),
    ],
)
def test_other_inputs_are_refused(trained: Any, inputs: Any, error: Any, said: str) -> None:
    with pytest.raises(error, match=said):
        trained.predict(inputs)


@pytest.mark.parametrize(
    "dataset, said",
    [
        (((LEFT, RIGHT[:7]), Y), "the inputs have different numbers of samples: 0 80, 1 7"),
        (
            ({"b": RIGHT, "a": LEFT}, Y),
            "dataset gives the inputs b, a, and the network takes a, b. Give the dict in the",
        ),
        (({"a": LEFT, "b": RIGHT.astype(str)}, Y), r"x\['b'\] has the type <U3"),
        ((((LEFT, RIGHT), Y), ((LEFT, RIGHT[:, :1]), Y)), r"the val inputs have shape \(4,\) and \(1, 3\), and others"),
        (
            [(LEFT[0], RIGHT[0], 1)],
            r"item 0 is a tuple of 3, and must be a pair \(x, y\); of several inputs \(\(x1, x2\)",
        ),
    ],
)
def test_other_datasets_are_refused(mx: Any, dataset: Any, said: str, tmp_path: Any) -> None:
    with pytest.raises(ConfigError, match=said):
        mxtrain.train(*QUICK, model=network(mx), dataset=dataset, dir=tmp_path / "run")
    with pytest.raises(ConfigError, match="several arrays. Type a model of your own, or in Python model=NETWORK"):
        mxtrain.train(*QUICK, model="mlp", dataset=((LEFT, RIGHT), Y), dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_network_of_several_inputs_is_exported(trained: Any, tmp_path: Any) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    trained.export(tmp_path / "exported")
    session = onnxruntime.InferenceSession(str(tmp_path / "exported/model.onnx"), providers=["CPUExecutionProvider"])
    assert len(session.get_inputs()) == 2
