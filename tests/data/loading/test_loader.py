import os
import threading

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pytest
from image_loader import image_loader

from mxtrain.data.loading.loader import Scale
from mxtrain.data.loading.sources import MemorySource, Subset
from mxtrain.errors import LoaderError
from mxtrain.kvstore.world import World
from mxtrain.vision.images.settings import Augment

ALL = Augment(crop_padding=2, flip=True, cutout=3, mixup=0.3, cutmix=1.0)


def make_source(count=50, channels=3, side=8):
    image = np.random.RandomState(0).randint(0, 256, (count, channels, side, side), dtype=np.uint8)
    return MemorySource(image, np.arange(count) % 10)


class InTasks(Subset):
    """The same samples, fetched a few at a time by threads."""

    def __init__(self, source):
        super().__init__(source, np.arange(len(source)))
        self.samples_per_task = 3


def make_loader(source=None, **changes):
    source = source or make_source()
    options = dict(batch_size=16, input_shape=source.shape, mean=[0.5] * 3, std=[0.25] * 3, num_classes=10, seed=7)
    return image_loader(source, **{**options, "num_workers": 2, **changes})


def read(batches):
    return [(batch.inputs[0].asnumpy(), batch.targets[0].asnumpy(), batch.size) for batch in batches]


def assert_same(left, right):
    assert len(left) == len(right) > 0
    for one, other in zip(left, right):
        assert np.array_equal(one[0], other[0]) and np.array_equal(one[1], other[1]) and one[2] == other[2]


def test_evaluation_is_in_order_complete_and_normalised():
    source = make_source()
    loader = make_loader(source)
    batches = read(loader.epoch())
    assert [size for _, _, size in batches] == [16, 16, 16, 2] and len(loader) == 4 and loader.num_samples == 50
    data = np.concatenate([b[0] for b in batches])
    np.testing.assert_allclose(data, (source.image_NCHW / 255 - 0.5) / 0.25, atol=1e-5)
    assert np.array_equal(np.concatenate([b[1] for b in batches]), source.label_N)
    assert batches[0][0].dtype == batches[0][1].dtype == np.float32


def test_training_shuffles_by_seed_and_epoch():
    loader = make_loader(train=True)
    orders = [np.concatenate([b[1] for b in read(loader.epoch(epoch))]) for epoch in (0, 1, 0)]
    assert not np.array_equal(orders[0], orders[1]) and np.array_equal(orders[0], orders[2])
    assert np.array_equal(np.sort(orders[0]), np.sort(orders[1]))
    other = np.concatenate([b[1] for b in read(make_loader(train=True, seed=8).epoch(0))])
    assert not np.array_equal(orders[0], other)


@pytest.mark.parametrize("augment", [Augment(crop_padding=2, flip=True, cutout=3), ALL])
def test_batches_do_not_depend_on_the_construction(augment):
    expected = read(make_loader(train=True, augment=augment, prefetch=0).epoch(3))
    assert_same(read(make_loader(train=True, augment=augment, prefetch=4).epoch(3)), expected)
    for workers in (1, 3):
        loader = make_loader(InTasks(make_source()), train=True, augment=augment, num_workers=workers)
        assert_same(read(loader.epoch(3)), expected)
        assert_same(read(loader.epoch(3, start=2)), expected[2:])
    assert_same(read(make_loader(train=True, augment=augment).epoch(3, start=3)), expected[3:])


def test_samples_are_the_same_in_other_batch_sizes():
    small, large = [
        np.concatenate([b[0] for b in read(make_loader(train=True, augment=ALL, batch_size=size).epoch())])
        for size in (7, 50)
    ]
    assert np.array_equal(small, large)


def test_global_random_state_is_neither_used_nor_changed():
    np.random.seed(0)
    expected = read(make_loader(train=True, augment=ALL).epoch())
    np.random.seed(1)
    before = np.random.get_state()[1].copy()
    assert_same(read(make_loader(train=True, augment=ALL).epoch()), expected)
    assert np.array_equal(np.random.get_state()[1], before)


def test_mixed_labels_are_probabilities():
    batch = next(make_loader(train=True, augment=ALL).epoch())
    assert batch.targets[0].shape == (16, 10)
    np.testing.assert_allclose(batch.targets[0].asnumpy().sum(1), 1, rtol=1e-6)


@pytest.mark.parametrize("native, wanted", [((1, 8, 8), (3, 8, 8)), ((3, 8, 8), (1, 8, 8)), ((3, 8, 8), (3, 20, 24))])
def test_channels_and_size_fit_the_network(native, wanted):
    source = make_source(channels=native[0])
    loader = make_loader(source, input_shape=wanted, mean=[0.5] * native[0], std=[0.25] * native[0])
    (data,) = next(loader.epoch()).inputs
    assert data.shape == (16, *wanted)
    expected = (source.image_NCHW[:16] / 255 - 0.5) / 0.25
    np.testing.assert_allclose(data.asnumpy().mean(), expected.mean(), atol=0.03)
    if wanted[1:] == native[1:]:
        reduced = expected.mean(1, keepdims=True) if wanted[0] == 1 else expected.repeat(3, 1)
        np.testing.assert_allclose(data.asnumpy(), reduced, atol=1e-5)


@pytest.mark.parametrize("native, wanted", [(3, 3), (1, 3), (3, 1)])
def test_the_path_for_gpus_computes_the_same(native, wanted):
    from mxtrain.vision.images.placer import Placer

    image = make_source(channels=native).image_NCHW
    place = Placer(native, (wanted, 8, 8), [0.5, 0.4, 0.3], [0.2, 0.3, 0.25], "cpu:0")
    (on_host,), _ = place(image, np.zeros(50))
    place.finish = place._finish_on_device
    (on_device,), _ = place(image, np.zeros(50))
    np.testing.assert_allclose(on_host.asnumpy(), on_device.asnumpy(), rtol=1e-6, atol=1e-6)


def test_limit_and_device():
    loader = make_loader(limit_batches=2, device="cpu:1")
    batches = list(loader.epoch())
    assert len(loader) == len(batches) == 2 and loader.num_samples == 32
    assert batches[0].inputs[0].context.device_id == 1


def test_loading_records_no_gradients():
    from mxtrain.engine.backend import autograd

    with autograd.record():
        batch = next(make_loader(prefetch=0, input_shape=(3, 16, 16)).epoch())
        assert autograd.is_recording()
    with pytest.raises(Exception, match="not part of a computation graph"):
        autograd.get_symbol(batch.inputs[0])


@pytest.mark.parametrize("tasks", [False, True])
def test_a_failing_source_raises_and_leaves_no_thread(tasks):
    source = InTasks(make_source()) if tasks else make_source()
    fetch = source.fetch

    def fail(index_B, **options):
        if 40 in index_B:
            raise KeyError("gone")
        return fetch(index_B, **options)

    source.fetch = fail
    with pytest.raises(LoaderError, match="samples .*gone"):
        for _ in make_loader(source).epoch():
            pass
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("mxtrain")]


def test_closing_early_leaves_no_thread():
    batches = make_loader(InTasks(make_source(200))).epoch()
    next(batches)
    assert [thread for thread in threading.enumerate() if thread.name.startswith("mxtrain")]
    batches.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("mxtrain")]


def sides(loader, epoch, start=0):
    return [batch.inputs[0].shape[2] if batch.size else None for batch in loader.epoch(epoch, start)]


def make_scaled(**changes):
    """A loader of samples in three sizes, whose targets say in which."""
    sources = [make_source(side=side) for side in (8, 12, 16)]
    scales = [Scale(source, lambda label_B, side=source.shape[1]: (label_B, 0 * label_B + side)) for source in sources]
    options = {"batch_size": 2, "train": True, "keeps_size": True, "scales": scales, "scale_interval": 3}
    return make_loader(sources[0], **{**options, **changes})


def test_batches_of_several_sizes_are_a_function_of_seed_epoch_and_number():
    expected = sides(make_scaled(), 1)
    assert len(expected) == 25 and set(expected) == {8, 12, 16}
    assert all(len(set(expected[begin : begin + 3])) == 1 for begin in range(0, 25, 3))
    assert sides(make_scaled(num_workers=1, prefetch=0), 1) == expected != sides(make_scaled(), 0)
    assert sides(make_scaled(), 1, start=7) == expected[7:] and sides(make_scaled(seed=8), 1) != expected
    assert [sides(make_scaled(world=World(rank, 2)), 1) for rank in (0, 1)] == [expected] * 2
    for batch, side in zip(make_scaled().epoch(1), expected):
        assert (batch.targets[1].asnumpy() == side).all()


def test_batches_of_several_sizes_are_read_in_tasks():
    sources = [InTasks(make_source(side=side)) for side in (8, 16)]
    options = {"scales": [Scale(source, None) for source in sources], "keeps_size": True, "train": True}
    batches = read(make_loader(sources[0], batch_size=7, **options).epoch(0))
    plain = read(make_loader(sources[0], batch_size=7, train=True).epoch(0))
    assert {batch[0].shape[2] for batch in batches} == {8, 16}
    assert all(np.array_equal(one[1], other[1]) for one, other in zip(batches, plain))
