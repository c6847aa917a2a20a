"""Datasets that fit into memory: what they read, and what they refuse."""

import gzip
import struct
import subprocess
import sys

import numpy as np
import pytest

from mxtrain.data.loading.splitting import channel_statistics, split_indices
from mxtrain.errors import DataError
from mxtrain.vision.classification.cifar import Cifar10, Cifar100
from mxtrain.vision.classification.digits import Digits
from mxtrain.vision.classification.mnist import FashionMnist, Mnist
from mxtrain.vision.classification.synthetic import Synthetic


def read_all(source):
    return source.fetch(np.arange(len(source)), seed=0, epoch=0, train=False)


def test_digits_match_scikit_learn():
    from sklearn.datasets import load_digits

    splits = Digits().open()
    parts = [read_all(source) for source in (splits.train, splits.val, splits.test)]
    assert [len(label) for _, label in parts] == [1257, 270, 270]
    ours = {(image.tobytes(), label) for images, labels in parts for image, label in zip(images, labels)}
    pixels, labels = load_digits(return_X_y=True)
    theirs = np.rint(pixels * 255 / 16).astype(np.uint8)
    assert ours == {(image.tobytes(), label) for image, label in zip(theirs, labels)}
    assert splits.shape == (1, 8, 8) and splits.class_names == list("0123456789")


def test_split_is_stratified_seeded_and_disjoint():
    label = np.repeat(np.arange(4), [10, 100, 1, 40])
    parts = split_indices(label, 0.2, 0.1, seed=0)
    assert sorted(np.concatenate(parts)) == list(range(151))
    counts = [np.bincount(label[part], minlength=4).tolist() for part in parts]
    assert counts == [[7, 70, 1, 28], [2, 20, 0, 8], [1, 10, 0, 4]]
    assert np.array_equal(split_indices(label, 0.2, 0.1, seed=0)[1], parts[1])
    assert not np.array_equal(split_indices(label, 0.2, 0.1, seed=1)[1], parts[1])


def test_split_remainder_is_assigned_by_largest_remainder():
    """A quarter of 10, 11 and 14 is 2.5, 2.75 and 3.5: eight in all are nine, and the last class had its share."""
    label = np.repeat(np.arange(3), [10, 11, 14])
    _, val, _ = split_indices(label, 0.25, 0.0, seed=0)
    assert np.bincount(label[val]).tolist() == [3, 3, 3]
    label = np.repeat(np.arange(4), [9, 6, 7, 10])  # 2.25, 1.5, 1.75, 2.5: two are left for 1.75 and the first .5
    _, val, _ = split_indices(label, 0.25, 0.0, seed=0)
    assert np.bincount(label[val]).tolist() == [2, 2, 2, 2]


def test_split_of_small_classes_keeps_every_class():
    label = np.repeat(np.arange(30), 5)
    train, val, test = split_indices(label, 0.1, 0.1, seed=0)
    assert (len(train), len(val), len(test)) == (120, 15, 15) and len(set(label[train])) == 30


def test_statistics_are_exact():
    image = np.random.RandomState(0).randint(0, 256, (1500, 2, 5, 4), dtype=np.uint8)
    mean, std = channel_statistics(image)
    np.testing.assert_allclose(mean, (image / 255).mean((0, 2, 3)), rtol=1e-12)
    np.testing.assert_allclose(std, (image / 255).std((0, 2, 3)), rtol=1e-9)


def test_given_statistics_are_used():
    splits = Digits(mean=[0.25], std=[0.75]).open()
    assert (splits.mean, splits.std) == ([0.25], [0.75])


def test_synthetic_is_repeatable_and_can_be_learned():
    options = dict(shape=[2, 6, 5], num_samples=400, num_classes=4)
    splits = Synthetic(**options).open()
    image, label = read_all(splits.train)
    again, _ = read_all(Synthetic(**options).open().train)
    assert image.shape[1:] == splits.shape == (2, 6, 5) and np.array_equal(image, again)
    assert not np.array_equal(image, read_all(Synthetic(**options, data_seed=5).open().train)[0])
    centres = np.stack([image[label == k].mean(0) for k in range(4)])
    test_image, test_label = read_all(splits.test)
    distance = ((test_image[:, None] - centres[None]) ** 2).sum((2, 3, 4))
    assert (distance.argmin(1) == test_label).mean() > 0.95


def test_synthetic_refuses_wrong_settings():
    with pytest.raises(DataError, match="num_samples=10000000 .*1402 GiB"):
        Synthetic(shape=[3, 224, 224], num_samples=10_000_000).open()


@pytest.mark.parametrize("kind", [Mnist, FashionMnist])
@pytest.mark.parametrize("packed", [True, False])
def test_idx(write_idx, kind, packed):
    splits = kind(root=str(write_idx(packed=packed)), verify_checksum=False).open()
    assert (len(splits.train), len(splits.val), len(splits.test)) == (90, 10, 20)
    assert splits.shape == (1, 28, 28) and len(splits.class_names) == 10
    expected = np.random.RandomState(0).randint(0, 256, (100, 28, 28), dtype=np.uint8)
    found = np.concatenate([read_all(splits.train)[0], read_all(splits.val)[0]])
    assert {row.tobytes() for row in found} == {row.tobytes() for row in expected}
    assert read_all(splits.test)[1].tolist() == list(range(10)) * 2


def test_idx_missing_names_folder_files_and_home(tmp_path):
    with pytest.raises(DataError) as caught:
        FashionMnist(root=str(tmp_path / "none")).open()
    for part in ("fashion_mnist", "none", "train-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz", "zalandoresearch"):
        assert part in str(caught.value)


def test_idx_with_wrong_checksum_is_refused(write_idx):
    with pytest.raises(DataError, match="(?s)train-images-idx3-ubyte.gz' is not the official.*verify_checksum=false"):
        Mnist(root=str(write_idx())).open()


@pytest.mark.parametrize("cut", [1, 2000])
def test_idx_cut_short_is_refused(write_idx, cut):
    root = write_idx(packed=False)
    path = root / "t10k-images-idx3-ubyte"
    path.write_bytes(path.read_bytes()[:-cut])
    with pytest.raises(DataError, match="t10k-images-idx3-ubyte' is truncated"):
        Mnist(root=str(root), verify_checksum=False).open()


def test_idx_cut_gzip_is_refused(write_idx):
    root = write_idx()
    path = root / "train-labels-idx1-ubyte.gz"
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(DataError, match="train-labels-idx1-ubyte.gz' is truncated"):
        Mnist(root=str(root), verify_checksum=False).open()


def test_idx_with_wrong_magic_is_refused(write_idx):
    root = write_idx()
    (root / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(b"<html>not found</html>"))
    with pytest.raises(DataError, match="not an IDX file of images: .*00000803"):
        Mnist(root=str(root), verify_checksum=False).open()


def write_cifar(root, num_labels, names, count=30):
    root.mkdir(parents=True, exist_ok=True)
    rng = np.random.RandomState(0)
    rows = []
    for name in names:
        table = rng.randint(0, 256, (count, num_labels + 3072), dtype=np.uint8)
        table[:, 0] = np.arange(count) % 10
        if num_labels == 2:
            table[:, 1] = np.arange(count) % 100
        (root / name).write_bytes(table.tobytes())
        rows.append(table)
    return np.concatenate(rows)


CIFAR10_NAMES = [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]


@pytest.mark.parametrize("inside", ["", "cifar-10-batches-bin"])
def test_cifar10(tmp_path, inside):
    table = write_cifar(tmp_path / inside, 1, CIFAR10_NAMES)
    splits = Cifar10(root=str(tmp_path), verify_checksum=False).open()
    assert (len(splits.train), len(splits.val), len(splits.test)) == (135, 15, 30)
    image, label = read_all(splits.test)
    assert np.array_equal(image.reshape(30, -1), table[150:, 1:]) and np.array_equal(label, table[150:, 0])
    assert splits.shape == (3, 32, 32) and splits.class_names[3] == "cat"


@pytest.mark.parametrize("labels, classes, column", [("fine", 100, 1), ("coarse", 20, 0)])
def test_cifar100(tmp_path, labels, classes, column):
    table = write_cifar(tmp_path, 2, ["train.bin", "test.bin"], count=200)
    splits = Cifar100(root=str(tmp_path), labels=labels, verify_checksum=False, val_fraction=0.5).open()
    assert len(splits.class_names) == classes
    assert np.array_equal(read_all(splits.test)[1], table[200:, column])


def test_cifar_refuses_missing_truncated_and_other_files(tmp_path):
    with pytest.raises(DataError, match="(?s)lacks data_batch_1.bin.*cs.toronto.edu"):
        Cifar10(root=str(tmp_path)).open()
    write_cifar(tmp_path, 1, CIFAR10_NAMES)
    with pytest.raises(DataError, match="data_batch_1.bin' is not the official file"):
        Cifar10(root=str(tmp_path)).open()
    path = tmp_path / "data_batch_4.bin"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DataError, match="data_batch_4.bin' is truncated"):
        Cifar10(root=str(tmp_path), verify_checksum=False).open()
    path.unlink()
    with pytest.raises(DataError, match="lacks data_batch_4.bin"):
        Cifar10(root=str(tmp_path)).open()


@pytest.mark.slow
def test_opening_loads_no_heavy_packages(write_images):
    code = (
        "import sys\n"
        "from mxtrain.vision.classification import cifar, digits, image_folder, image_record, mnist, synthetic\n"
        "from mxtrain.vision.images import make_record\n"
        "from mxtrain.data.loading import loader\n"
        "digits.Digits().open(); synthetic.Synthetic().open()\n"
        "image_folder.ImageFolder(root=sys.argv[1], image_size=32).open()\n"
        "print({'mxnet', 'sklearn', 'gluoncv', 'matplotlib', 'PIL'} & set(sys.modules))\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(write_images())], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_a_check_of_idx_files_lists_every_label_and_every_file(write_idx, check):
    root = write_idx(packed=False)
    dataset = Mnist(root=str(root), verify_checksum=False)
    assert check(dataset) == [] and check.census.num_samples == {"train": 90, "val": 10, "test": 20}
    assert sum(check.census.class_counts["train"]) == 90
    change_byte(root / "train-labels-idx1-ubyte", 8 + 3, 10)
    change_byte(root / "train-labels-idx1-ubyte", 8 + 99, 200)
    # Image 7 is that of image 2 once more; which of both is held out depends on the seed.
    images = root / "train-images-idx3-ubyte"
    content = images.read_bytes()
    first, second = (slice(16 + n * 784, 16 + (n + 1) * 784) for n in (2, 7))
    images.write_bytes(content[: second.start] + content[first] + content[second.stop :])
    found = check(dataset)
    assert found == [
        ("label_range", "train-labels-idx1-ubyte", 3),
        ("label_range", "train-labels-idx1-ubyte", 99),
        ("duplicate", "train-images-idx3-ubyte", 7),
    ]
    assert "'train-images-idx3-ubyte' (train)" in check.problems[2].fact.replace(f"{root}/", "")
    # Both files of images are cut off, and one of labels is too short.
    images.write_bytes(content[:-5])
    (root / "t10k-images-idx3-ubyte").write_bytes(b"<html>")
    assert [file for kind, file, _ in check(dataset) if kind == "cannot_open"] == [
        "train-images-idx3-ubyte",
        "t10k-images-idx3-ubyte",
    ]
    assert check.census.num_samples == {}


def test_check_of_idx_files_continues_after_wrong_checksum_or_count(write_idx, check):
    root = write_idx(packed=False)
    labels = root / "t10k-labels-idx1-ubyte"
    labels.write_bytes(struct.pack(">2I", 0x801, 19) + labels.read_bytes()[8:-1])
    kinds = [kind for kind, _, _ in check(Mnist(root=str(root)))]
    assert kinds == ["wrong_checksum"] * 4 + ["missing_counterpart"]
    assert check.census.num_samples["test"] == 19


def change_byte(path, place, value):
    content = bytearray(path.read_bytes())
    content[place] = value
    path.write_bytes(content)


def test_a_check_of_cifar_files_names_file_and_record(tmp_path, check):
    write_cifar(tmp_path, 1, CIFAR10_NAMES)
    for name in CIFAR10_NAMES[1:]:  # the helper writes the same into each
        content = np.frombuffer((tmp_path / name).read_bytes(), np.uint8).reshape(-1, 3073).copy()
        content[:, 1:] += CIFAR10_NAMES.index(name)
        (tmp_path / name).write_bytes(content.tobytes())
    dataset = Cifar10(root=str(tmp_path), verify_checksum=False, val_fraction=0.1)
    assert check(dataset) == []
    change_byte(tmp_path / "data_batch_2.bin", 3073 * 4, 77)
    content = (tmp_path / "data_batch_1.bin").read_bytes()
    test = (tmp_path / "test_batch.bin").read_bytes()
    (tmp_path / "test_batch.bin").write_bytes(content[: 3073 * 2] + test[3073 * 2 : -100])
    found = check(dataset)
    assert found[:2] == [("label_range", "data_batch_2.bin", 4), ("cannot_open", "test_batch.bin", None)]
    assert found[2:] == [("duplicate_across_splits", "test_batch.bin", n) for n in (0, 1)]
    assert [problem.fact.count("data_batch_1.bin") for problem in check.problems[2:]] == [1, 1]
    assert check.census.num_samples["test"] == 29
