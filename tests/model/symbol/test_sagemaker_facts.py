"""Sizes of images and numbers of classes in SageMaker's archives."""

import io
import json
import tarfile

import pytest
from symbol_files import described, features, write

import mxtrain
from mxtrain.engine.backend import mx
from mxtrain.model.symbol.sagemaker import TrainedWith, trained_with

SHAPES = [{"name": "data", "shape": [1, 3, 224, 224]}]


def archive_of(folder, **files):
    archive = folder / "model.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        for path in sorted(folder.glob("old-*")):
            tar.add(path, path.name)
        for name, content in files.items():
            text = content if isinstance(content, bytes) else json.dumps(content).encode()
            entry = tarfile.TarInfo(f"{name.replace('_', '-')}.json")
            entry.size = len(text)
            tar.addfile(entry, io.BytesIO(text))
    return archive


@pytest.mark.parametrize(
    "files, facts",
    [
        ({}, TrainedWith()),
        ({"model_shapes": [{"name": "softmax_label", "shape": [1]}, *SHAPES]}, TrainedWith(224)),
        ({"hyperparams": {"image_shape": "3,192,192", "num_classes": "12"}}, TrainedWith(192, 12)),
        ({"hyperparams": {"image_shape": "300", "num_classes": 3}}, TrainedWith(300, 3)),
        ({"model_shapes": SHAPES, "hyperparams": {"image_shape": "3,64,64"}}, TrainedWith(224)),
        ({"model_shapes": [{"name": "data", "shape": [1, 3, 224, 256]}]}, TrainedWith()),
        ({"model_shapes": [{"shape": ["a", None]}, 3, {}], "hyperparams": [1]}, TrainedWith()),
        ({"model_shapes": {"shape": [8, 8]}, "hyperparams": {"num_classes": "-2", "image_shape": None}}, TrainedWith()),
        ({"model_shapes": b"{", "hyperparams": b"\xff"}, TrainedWith()),
        ({"model_shapes": [{"shape": []}], "hyperparams": {"num_classes": "99999999"}}, TrainedWith()),
    ],
)
def test_facts_are_read_and_damaged_ones_skipped(tmp_path, files, facts):
    assert trained_with(archive_of(tmp_path, **files)) == facts


def test_files_that_are_no_archives_tell_nothing(tmp_path):
    (tmp_path / "a.tar.gz").write_text("x")
    assert trained_with(tmp_path / "a.tar.gz") == trained_with(tmp_path / "none.tar.gz") == TrainedWith()


def test_size_is_the_usual_one_and_inspect_tells_it(tmp_path):
    write(tmp_path, mx.sym.SoftmaxOutput(features(), name="softmax"))
    archive = str(archive_of(tmp_path, model_shapes=SHAPES, hyperparams={"num_classes": "3"}))
    model = described(symbol=archive)
    assert model.usual_side == 224
    assert described(symbol=archive, trained_side=32).usual_side == 32
    assert described(symbol=archive, **model.recorded).usual_side == 224
    remarks = mxtrain.inspect(archive).remarks
    assert "It was trained with images of 224x224, the size for image_size=auto." in remarks
    assert "Its settings name 3 classes." in remarks
    assert described(prefix=str(tmp_path / "old")).usual_side is None
