"""Files that users of the Module API, SageMaker and insightface have, written by MXNet itself."""

import io
import pickle
import tarfile
import warnings
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


def write_faces(folder: Path, side: int = 112, identities: int = 4, count: int = 6) -> None:
    """Writes train.rec, train.idx, property and lfw.bin in the layout of insightface's face2rec2.py and lfw2pack.py."""
    folder.mkdir(parents=True)
    rng = np.random.RandomState(0)

    def encode(shade: int) -> bytes:
        stream = io.BytesIO()
        Image.fromarray(rng.randint(shade, shade + 60, (side, side, 3)).astype(np.uint8)).save(stream, "JPEG")
        return stream.getvalue()

    pack, end = mx.recordio.pack, identities * count + 1
    writer = mx.recordio.MXIndexedRecordIO(str(folder / "train.idx"), str(folder / "train.rec"), "w")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # `pack` calls `tostring`
        for key in range(1, end):
            identity = (key - 1) // count
            writer.write_idx(key, pack(mx.recordio.IRHeader(0, float(identity), key, 0), encode(40 * identity)))
        for identity in range(identities):
            bounds = [1 + identity * count, 1 + (identity + 1) * count]
            writer.write_idx(end + identity, pack(mx.recordio.IRHeader(2, bounds, end + identity, 0), b""))
        writer.write_idx(0, pack(mx.recordio.IRHeader(2, [end, end + identities], 0, 0), b""))
    writer.close()
    (folder / "property").write_text(f"{identities},{side},{side}\n")
    pairs = [(number % identities, (number + number % 2) % identities) for number in range(20)]
    images = [encode(40 * identity) for pair in pairs for identity in pair]
    (folder / "lfw.bin").write_bytes(pickle.dumps((images, [first == second for first, second in pairs])))
