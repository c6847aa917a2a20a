"""Files that users of the Module API, GluonCV and SageMaker have, written by MXNet and GluonCV themselves."""

import tarfile
from pathlib import Path

import numpy as np
from PIL import Image

from mxtrain.engine.backend import mx


def old_symbol() -> "mx.sym.Symbol":
    """A network of Module for images of 32 x 32 pixels and two classes."""
    x = mx.sym.Convolution(mx.sym.var("data"), num_filter=4, kernel=(3, 3), stride=(2, 2), name="conv1")
    x = mx.sym.Activation(mx.sym.BatchNorm(x, fix_gamma=False, name="bn1"), act_type="relu")
    return mx.sym.SoftmaxOutput(mx.sym.FullyConnected(mx.sym.Flatten(x), num_hidden=2, name="fc1"), name="softmax")


def write_old_files(folder: Path) -> None:
    """Writes old-symbol.json and old-0003.params as `Module.save_checkpoint` does, and a model.tar.gz of SageMaker."""
    module = mx.mod.Module(old_symbol())
    module.bind([("data", (2, 3, 32, 32))], [("softmax_label", (2,))])
    mx.random.seed(0)
    module.init_params(mx.init.Xavier())
    module.save_checkpoint(str(folder / "old"), 3)
    with tarfile.open(folder / "model.tar.gz", "w:gz") as archive:
        archive.add(folder / "old-symbol.json", "image-classification-symbol.json")
        archive.add(folder / "old-0003.params", "image-classification-0010.params")


def write_photos(folder: Path, count: int = 12) -> None:
    """Writes images of two classes, FOLDER/cat and FOLDER/dog."""
    rng = np.random.RandomState(0)
    for name, shade in (("cat", 60), ("dog", 190)):
        (folder / name).mkdir(parents=True)
        for number in range(count):
            pixels = rng.randint(shade - 50, shade + 50, (48, 64, 3)).astype(np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{number}.png")
