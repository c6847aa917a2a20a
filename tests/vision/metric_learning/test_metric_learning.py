"""The task: network, loss, evaluation on other identities, nearest neighbours, and export."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import average_precision_score

from mxtrain.api.run import load
from mxtrain.cli.dispatch import run
from mxtrain.data.signature import Signature
from mxtrain.engine.backend import autograd, gluon, mx, nd
from mxtrain.model.parameters import distinct_parameters
from mxtrain.vision.metric_learning.head import EmbeddingNetwork, IdentityLoss
from mxtrain.vision.metric_learning.losses import ArcFace, Triplet
from mxtrain.vision.metric_learning.task import MetricLearning
from mxtrain.vision.metric_learning.verification import pair_label
from mxtrain.workflows.evaluate import uses_exported

SMALL = ("task=metric_learning", "task.embedding_size=6", "dataset.batch_size=32", "model.hidden=8")
TWO_STEPS = ("trainer.max_epochs=1", "trainer.limit_train_batches=2")
SIGNATURE = Signature((1, 8, 8), class_names=["a", "b", "c"])


def unit_rows(array: np.ndarray) -> np.ndarray:
    return array / np.linalg.norm(array, axis=-1, keepdims=True)


def built(**options: Any) -> EmbeddingNetwork:
    """A network of one dense layer without bias, 3 identities and 5 numbers."""
    network = EmbeddingNetwork(gluon.nn.Dense(5, use_bias=False, in_units=8), 3, 5, **options)
    mx.random.seed(0)
    network.initialize(mx.init.Normal(1.0))
    return network


@pytest.mark.parametrize("hybrid", [False, True])
@pytest.mark.parametrize("sub_centres", [1, 2])
@pytest.mark.parametrize("flip", [False, True])
def test_outputs_match_numpy(hybrid: bool, sub_centres: int, flip: bool) -> None:
    network = built(sub_centres=sub_centres, flip=flip)
    if hybrid:
        network.hybridize()
    image_BCHW = np.random.RandomState(0).randn(4, 1, 2, 4).astype(np.float32)
    embedding_BD, cosine_BK = (output.asnumpy() for output in network(nd.array(image_BCHW)))
    weight_DP = network.embedding.weight.data().asnumpy()
    images = [image_BCHW, image_BCHW[:, :, :, ::-1]][: 1 + flip]
    expected_BD = unit_rows(sum(image.reshape(4, 8) @ weight_DP.T for image in images))
    np.testing.assert_allclose(embedding_BD, expected_BD, atol=5e-6)
    centre_KSD = unit_rows(network.centres.data().asnumpy()).reshape(3, sub_centres, 5)
    np.testing.assert_allclose(cosine_BK, np.einsum("bd,ksd->bks", expected_BD, centre_KSD).max(axis=2), atol=5e-6)


def test_exported_weights_are_those_of_the_network_without_centres() -> None:
    network = built()
    arrays = {name: parameter.data().asnumpy() for name, parameter in distinct_parameters(network).items()}
    found = MetricLearning().export_form().exported_weights(arrays)
    assert list(found) == ["embedding.weight"]
    assert all(found[name] is arrays[name] for name in found)


@pytest.mark.parametrize("drawn", [None, 2])
@pytest.mark.parametrize("classes", [SIGNATURE.class_names, ["a", "b"]])
def test_evaluation_loads_centres_only_to_compute_the_loss(drawn: Any, classes: Any) -> None:
    run_of: Any = SimpleNamespace(
        description=SimpleNamespace(task=MetricLearning(sampled_classes=drawn)), signature=SIGNATURE
    )
    splits: Any = SimpleNamespace(class_names=classes)
    assert uses_exported(run_of, splits) == (drawn is not None or len(classes) == 2)


def test_weights_of_the_embedding_network_alone_have_its_names() -> None:
    network = built()
    assert network.backbone_names == {}
    network.embedding.backbone_names = {"weight": "fc1_weight"}
    assert network.backbone_names == {"embedding.weight": "fc1_weight"}


def test_loss_in_training_is_that_of_the_description() -> None:
    cosine_BK, class_B = nd.array([[0.9, 0.1, 0.2], [0.3, 0.4, -0.5]]), nd.array([0, 2])
    block = IdentityLoss(ArcFace(), 3, training=True)
    assert not block.weighted
    np.testing.assert_array_equal(
        block(nd.zeros((2, 5)), cosine_BK, class_B).asnumpy(), ArcFace().compute(nd, cosine_BK, class_B).asnumpy()
    )


@pytest.mark.parametrize("hybrid", [False, True])
def test_unknown_identities_have_no_weight_in_evaluation(hybrid: bool) -> None:
    cosine_BK, class_B = nd.array([[0.5, 0.1, 0.4]] * 4), nd.array([0, 3, -1, pair_label(4, True)])
    block = IdentityLoss(ArcFace(), 3, training=False)
    if hybrid:
        block.hybridize()
    loss_B, weight_B = block(nd.zeros((4, 5)), cosine_BK, class_B)
    assert block.weighted and weight_B.asnumpy().tolist() == [1, 0, 0, 0]
    assert loss_B.asnumpy()[1:].tolist() == [0, 0, 0]
    assert loss_B.asnumpy()[0] == ArcFace().compute(nd, cosine_BK, class_B).asnumpy()[0] > 0


def test_loss_without_centres_is_not_defined() -> None:
    loss_B, weight_B = IdentityLoss(ArcFace(), 3, training=False)(nd.zeros((2, 5)), nd.array([0, 1]))
    assert loss_B.asnumpy().tolist() == weight_B.asnumpy().tolist() == [0, 0]


def test_triplets_are_compared_by_their_embeddings() -> None:
    embedding_BD = nd.array(unit_rows(np.random.RandomState(1).randn(6, 5)))
    class_B = nd.array([0, 0, 1, 1, -2, -2])
    block = IdentityLoss(Triplet(), 3, training=False)
    expected = Triplet().compute(nd, embedding_BD, class_B)
    for found, array in zip(block(embedding_BD, class_B), expected):
        np.testing.assert_array_equal(found.asnumpy(), array.asnumpy())
    assert expected[1].asnumpy().tolist() == [1] * 6


def test_gradients_reach_embedding_and_centres() -> None:
    network, loss = built(), IdentityLoss(ArcFace(), 3, training=True)
    with autograd.record():
        value_B = loss(*network(nd.random.normal(shape=(4, 8))), nd.array([0, 1, 2, 0]))
    value_B.backward()
    for parameter in (network.embedding.weight, network.centres):
        assert np.abs(parameter.grad().asnumpy()).max() > 1e-3


def test_explained_score_is_the_cosine_with_the_nearest_centre() -> None:
    task, batch = MetricLearning(), SimpleNamespace(targets=[nd.array([1, 7])])
    cosine_BK = nd.array([[0.1, 0.9, 0.2], [-0.1, -0.3, -0.2]])
    outputs = (nd.array(unit_rows(np.ones((2, 5)))), cosine_BK)
    found = task.explained(SimpleNamespace(), SIGNATURE, outputs, batch)  # type: ignore[arg-type]
    np.testing.assert_allclose(found.score(outputs).asnumpy(), [0.9, -0.1], rtol=1e-6)
    assert (found.true, found.predicted, found.is_right_B.tolist()) == (["b", "7"], ["b", "a"], [True, False])
    np.testing.assert_allclose(found.probability_B, [0.9, 0], rtol=1e-6)
    alone = task.explained(SimpleNamespace(), SIGNATURE, outputs[:1], batch)  # type: ignore[arg-type]
    np.testing.assert_allclose(alone.score(outputs[:1]).asnumpy(), [1, 1], rtol=1e-6)


@pytest.mark.parametrize(
    "label, identity", [(1, "b"), (7, "7"), (-2, "pair 0, one identity"), (-5, "pair 1, two identities")]
)
def test_result_names_identity_or_pair(label: int, identity: str) -> None:
    sample = SimpleNamespace(targets=[np.float32(label)])
    assert MetricLearning().result(SIGNATURE, None, sample) == {"identity": identity}  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize(
    "words, said",
    [
        ("loss=softmax_cross_entropy", "not for task=metric_learning. Type loss=arcface."),
        ("dataset.augment.mixup=0.2", "a mixed image has no identity. Switch mixup and cutmix off."),
        ("metric=[accuracy]", "not for task=metric_learning. Type metric=[verification_accuracy]"),
        ("loss=triplet trainer.grad_accumulation=2", "needs whole_batch: its loss compares the samples of a batch"),
        ("loss=triplet parallel=data", "needs whole_batch"),
    ],
)
def test_misfits_are_refused(capsys: Any, words: str, said: str) -> None:
    assert run(["task=metric_learning", *words.split(), "logger=[]"]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.slow
def test_evaluation_equals_scikit_learn(train_run: Any, tmp_path: Path, capsys: Any) -> None:
    _, result = train_run(*SMALL[:-1], "trainer.max_epochs=3")
    assert math.isfinite(result.metrics["val/loss"])
    assert run(["eval", str(tmp_path / "run"), "split=test"]) == 0
    measured = json.loads((tmp_path / "run" / "eval" / "test" / "metrics.json").read_text())
    output = tmp_path / "rows.jsonl"
    assert run(["predict", str(tmp_path / "run"), "split=test", f"output={output}", "task.neighbours=0"]) == 0
    embedding_ND = np.array([json.loads(line)["embedding"] for line in output.read_text().splitlines()])
    np.testing.assert_allclose(np.linalg.norm(embedding_ND, axis=1), 1, atol=1e-5)
    rows = (tmp_path / "run" / "eval" / "test" / "predictions.csv").read_text().splitlines()
    column = rows[0].split(",").index("identity")
    label_N = np.array([int(row.split(",")[column]) for row in rows[1:]])
    similarity_NN = embedding_ND @ embedding_ND.T
    precisions, hits = [], []
    for query in range(len(label_N)):
        is_same_N, similarity_N = (np.delete(row, query) for row in (label_N == label_N[query], similarity_NN[query]))
        precisions.append(average_precision_score(is_same_N, similarity_N))
        hits.append(is_same_N[similarity_N.argmax()])
    assert measured["retrieval_map"] == pytest.approx(np.mean(precisions), abs=1e-4)
    assert measured["recall_at_k"] == pytest.approx(np.mean(hits), abs=1e-6)
    assert 0.3 < measured["retrieval_map"] < measured["recall_at_k"]


@pytest.mark.slow
def test_neighbours_are_those_of_the_training_images(train_run: Any, tmp_path: Path, capsys: Any) -> None:
    train_run(*SMALL, *TWO_STEPS)

    def predicted(*words: str) -> list[dict[str, Any]]:
        capsys.readouterr()
        assert run(["predict", str(tmp_path / "run"), *words]) == 0
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    gallery_ND = np.array([row["embedding"] for row in predicted("split=train", "task.neighbours=0")])
    for row in predicted("split=test", "sample=3", "task.neighbours=4"):
        similarity_N = gallery_ND @ np.array(row["embedding"])
        found = [neighbour["similarity"] for neighbour in row["nearest"]]
        np.testing.assert_allclose(found, np.sort(similarity_N)[::-1][:4], atol=1e-4)
        places = [int(neighbour["file"].split(":")[1]) for neighbour in row["nearest"]]
        np.testing.assert_allclose(similarity_N[places], found, atol=1e-4)
        assert all(neighbour["identity"] in "0123456789" for neighbour in row["nearest"])
    (row,) = predicted("split=test", "sample=1", "task.gallery_size=2")
    assert {neighbour["file"] for neighbour in row["nearest"]} == {"train:0", f"train:{len(gallery_ND) - 1}"}


@pytest.mark.slow
def test_predictions_without_training_images(train_run: Any, tmp_path: Path, capsys: Any, caplog: Any) -> None:
    from PIL import Image

    for name in ("a", "b"):
        (tmp_path / "data" / name).mkdir(parents=True)
        for number in range(6):
            Image.new("RGB", (8, 8), (number * 40, 0, 200)).save(tmp_path / "data" / name / f"{number}.png")
    words = ("dataset=image_folder", f"dataset.root={tmp_path}/data", "dataset.image_size=[8,8]", "model=lenet")
    train_run(*SMALL, *words, *TWO_STEPS)
    image = str(tmp_path / "query.png")
    (tmp_path / "data" / "a" / "0.png").rename(image)
    (tmp_path / "data").rename(tmp_path / "gone")
    capsys.readouterr()
    assert run(["predict", str(tmp_path / "run"), image]) == 0
    (row,) = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert list(row) == ["file", "embedding"] and len(row["embedding"]) == 6
    assert "no nearest training images: " in caplog.text


@pytest.mark.slow
@pytest.mark.parametrize("loss", ["arcface", "triplet"])
def test_other_identities_are_evaluated(train_run: Any, tmp_path: Path, loss: str) -> None:
    train_run(*SMALL, f"loss={loss}", *TWO_STEPS)
    words = ["dataset=synthetic", "dataset.num_classes=4", "dataset.shape=[1,8,8]", "split=val"]
    assert run(["eval", str(tmp_path / "run"), *words, "explain=grad_cam", "explain_samples=2"]) == 0
    folder = tmp_path / "run" / "eval" / "val"
    measured = json.loads((folder / "metrics.json").read_text())
    assert (measured["loss"] is None) == (loss == "arcface")
    assert 0 < measured["retrieval_map"] <= 1 and 0.4 < measured["verification_accuracy"] <= 1
    assert (folder / "worst_pairs.csv").exists()
    rows = load(tmp_path / "run").results(*words[:-1], split="val", limit_batches=1)
    assert {row["identity"] for row in rows} == {f"class {number}" for number in range(4)}


@pytest.mark.slow
@pytest.mark.parametrize(
    "words, has_loss",
    [
        (["loss=arcface"], False),
        (["loss=triplet"], True),
        (["loss=arcface", "task.sampled_classes=3", "trainer.sparse_grad=true"], False),
    ],
)
def test_exported_network_has_no_centres(
    train_run: Any, tmp_path: Path, capsys: Any, words: list[str], has_loss: bool
) -> None:
    onnx = pytest.importorskip("onnx")
    train_run(*SMALL, *words, "task.flip=true", *TWO_STEPS)
    network = load(tmp_path / "run").network
    has_centres = any("centres" in name for name in network._collect_params_with_prefix())
    assert has_centres == ("loss=arcface" in words)
    assert run(["export", str(tmp_path / "run")]) == 0
    printed = capsys.readouterr().out
    assert ("\nloss: " in printed) == has_loss and "nan" not in printed and "\nretrieval_map: 0." in printed
    model = onnx.load(str(tmp_path / "run" / "export" / "model.onnx"))
    assert [output.name for output in model.graph.output] == ["output"]
    assert not any("centres" in array.name for array in model.graph.initializer)
    assert model.graph.output[0].type.tensor_type.shape.dim[1].dim_value == 6
    assert run(["export", str(tmp_path / "run"), "for=safetensors", f"out={tmp_path / 'weights'}"]) == 0
    names = json.loads((tmp_path / "weights" / "names.json").read_text())
    assert names and all(name.startswith("embedding.") for name in names)
