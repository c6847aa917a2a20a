"""Samplers choose the samples of a training epoch by class."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any, Dict, Sequence

import numpy as np
import pytest
from image_loader import image_loader

from mxtrain.data.loading.loader import LoaderOptions
from mxtrain.data.loading.randomness import permutation, seed_of_repeat
from mxtrain.data.loading.sampling import ClassSampler, EverySample, GroupSampler, build_class_sampler
from mxtrain.data.loading.sources import MemorySource, Subset
from mxtrain.data.spec import Splits
from mxtrain.errors import ConfigError, DataError
from mxtrain.kvstore.world import ALONE, World
from mxtrain.text.sources import LabelledTexts
from mxtrain.text.tokenizing.config import TokenizerConfig
from mxtrain.text.tokenizing.wordpiece import SPECIAL, WordPiece
from mxtrain.training.loaders import build_sampler
from mxtrain.vision.classification.digits import Digits
from mxtrain.vision.images.loader import Loader
from mxtrain.vision.images.settings import Augment

SIZES = (1, 7, 40, 152)
LABELS = np.random.RandomState(0).permutation(np.repeat(np.arange(4), SIZES)).astype(np.int32)
NAMES = ("a", "b", "c", "d")


def sampler(weights: Sequence[float] = (1, 1, 1, 1), seed: int = 3, label_N: np.ndarray = LABELS) -> ClassSampler:
    return ClassSampler(label_N, weights, NAMES, seed)


def counts_of(drawn_N: np.ndarray, label_N: np.ndarray = LABELS) -> np.ndarray:
    return np.bincount(label_N[drawn_N % len(label_N)], minlength=4)


def test_balanced_classes_differ_by_at_most_one_sample_in_every_epoch() -> None:
    label_N = LABELS[:-1]  # 199 samples: four classes cannot be equal
    chosen = sampler(label_N=label_N)
    counts = np.array([counts_of(chosen.draw(epoch), label_N) for epoch in range(40)])
    assert (counts.sum(axis=1) == 199).all() and (counts.max(axis=1) - counts.min(axis=1) == 1).all()
    assert counts.sum(axis=0) == pytest.approx([40 * 199 / 4] * 4, abs=9)  # none is always the one that gets less
    assert [chosen.counts(epoch).tolist() for epoch in range(40)] == counts.tolist()


@pytest.mark.parametrize("weights", [(1, 1, 1, 1), (0.3, 1, 2.7, 1), (1e-6, 1, 1e6, 1)])
def test_classes_are_drawn_in_the_ratio_of_their_weights(weights: Sequence[float]) -> None:
    chosen = sampler(weights)
    exact = 200 * np.array(weights) / sum(weights)
    for epoch in range(20):
        counts = counts_of(chosen.draw(epoch))
        assert counts.sum() == 200 and (np.abs(counts - exact) < 1).all()


def test_samples_repeat_only_after_all_of_their_class() -> None:
    """Over epochs, and within one: the rare class comes whole 7 times, of the frequent one a third."""
    chosen = sampler()
    times: Counter = Counter()
    for epoch in range(10):
        drawn_N = chosen.draw(epoch)
        times.update((drawn_N % 200).tolist())
        for label in range(4):
            often = [times[index] for index in np.flatnonzero(LABELS == label)]
            assert max(often) - min(often) <= 1 and sum(often) == 50 * (epoch + 1)
        frequent = drawn_N[LABELS[drawn_N % 200] == 3]
        assert (frequent < 400).all()  # at most the end of one pass and the beginning of the next
    orders = [[i % 200 for i in sampler().draw(epoch) if LABELS[i % 200] == 1][:7] for epoch in (0, 7)]
    assert orders[0] != orders[1]  # each pass has an order of its own


def test_repeated_samples_of_an_epoch_are_augmented_differently() -> None:
    drawn_N = sampler().draw(4)
    assert len(set(drawn_N.tolist())) == 200
    repeats = [sorted(drawn_N[LABELS[drawn_N % 200] == label] // 200) for label in (0, 1)]
    assert repeats[0] == list(range(50)) and set(repeats[1]) == set(range(8))
    seeds = [seed_of_repeat(5, repeat) for repeat in range(50)]
    assert seeds[0] == 5 and len(set(seeds)) == 50 and 0 <= min(seeds) <= max(seeds) < 2**31


def test_equal_classes_are_all_taken_once() -> None:
    label_N = np.arange(200, dtype=np.int32) % 4
    assert sorted(sampler(label_N=label_N).draw(7)) == list(range(200))


def test_an_epoch_is_a_function_of_seed_and_epoch() -> None:
    assert np.array_equal(sampler().draw(5), sampler().draw(5))
    assert not np.array_equal(sampler().draw(5), sampler(seed=4).draw(5))


def test_a_class_without_samples_is_left_out() -> None:
    for missing in range(4):
        label_N = LABELS[LABELS != missing]
        counts = counts_of(sampler(label_N=label_N).draw(0), label_N)
        assert counts[missing] == 0 and counts.sum() == len(label_N)
        assert np.ptp(np.delete(counts, missing)) <= 1


def test_the_line_at_the_start() -> None:
    assert sampler().summary == (
        "an epoch has 200 samples; of each class, rarest first: a 1 -> 50, b 7 -> 50, c 40 -> 50, d 152 -> 50"
    )
    many = ClassSampler(np.repeat(np.arange(30), np.arange(1, 31)), [1] * 30, [f"k{k}" for k in range(30)], 0)
    assert re.search(r"first: k0 1 -> 1[56], .*k4 5 -> 1[56], \(20 more\), k25 26 -> .*k29 30 -> 1[56]$", many.summary)


# In loaders.


def loader(source: Any = None, chosen: Any = None, **changes: Any) -> Loader:
    image = np.random.RandomState(0).randint(0, 256, (200, 3, 8, 8), dtype=np.uint8)
    options: Dict[str, Any] = dict(
        batch_size=16,
        input_shape=(3, 8, 8),
        mean=[0.5] * 3,
        std=[0.25] * 3,
        num_classes=4,
        seed=3,
        train=True,
        sampler=chosen or sampler(),
        num_workers=2,
    )
    return image_loader(source or MemorySource(image, LABELS), **{**options, **changes})


class InTasks(Subset):
    samples_per_task = 3

    def __init__(self, source: Any) -> None:
        super().__init__(source, np.arange(len(source)))
        self.samples_per_task = 3


def read(batches: Any) -> list:
    return [(batch.inputs[0].asnumpy(), batch.targets[0].asnumpy(), batch.index_B) for batch in batches]


def assert_same(left: list, right: list) -> None:
    assert len(left) == len(right) > 0
    assert all(np.array_equal(a, b) for one, other in zip(left, right) for a, b in zip(one, other))


@pytest.mark.slow
@pytest.mark.parametrize("augment", [Augment(crop_padding=2, flip=True), Augment(flip=True, mixup=0.3, cutmix=1.0)])
def test_batches_do_not_depend_on_their_construction(augment: Augment) -> None:
    expected = read(loader(augment=augment, prefetch=0).epoch(2))
    source = InTasks(loader().source)
    for workers in (1, 3):
        made = loader(source, augment=augment, num_workers=workers)
        assert_same(read(made.epoch(2)), expected)
        assert_same(read(made.epoch(2, start=5)), expected[5:])
    shares = [read(loader(augment=augment, world=World(rank, 2)).epoch(2)) for rank in (0, 1)]
    together = [tuple(map(np.concatenate, zip(*parts))) for parts in zip(*shares)]
    assert_same(together, expected)


def test_an_epoch_is_shuffled_and_has_its_classes() -> None:
    batches = read(loader().epoch(0))
    labels = np.concatenate([label for _, label, _ in batches]).astype(int)
    indices = np.concatenate([index for _, _, index in batches])
    assert np.array_equal(LABELS[indices], labels) and np.bincount(labels).tolist() == [50] * 4
    assert max(np.bincount(label.astype(int), minlength=4).max() for _, label, _ in batches) < 14


def test_a_repeated_sample_is_changed_in_another_way_each_time() -> None:
    only = np.flatnonzero(LABELS == 0)[0]
    for augment, different in ((Augment(crop_padding=2, flip=True), 10), (Augment(), 1)):
        images = [
            image.tobytes()
            for batch in read(loader(augment=augment).epoch(0))
            for image, index in zip(batch[0], batch[2])
            if index == only
        ]
        assert len(images) == 50 and len(set(images)) >= different and (different > 1 or len(set(images)) == 1)


def test_partners_for_mixing_are_of_the_epoch() -> None:
    """Half of what is learned of a mixed sample is its partner: it must be balanced, too."""
    augment = Augment(mixup=1.0)
    total = sum(label.sum(axis=0) for epoch in range(3) for _, label, _ in read(loader(augment=augment).epoch(epoch)))
    assert (total / total.sum()).tolist() == pytest.approx([0.25] * 4, abs=0.05)


def test_order_without_sampler_is_the_permutation() -> None:
    plain = loader(chosen=EverySample(200))
    assert np.array_equal(np.concatenate([index for *_, index in read(plain.epoch(3))]), permutation(3, 3, 200))
    still = loader(train=False)
    assert np.array_equal(np.concatenate([index for *_, index in read(still.epoch(3))]), np.arange(200))


def test_texts_of_like_length_stay_together() -> None:
    pytest.importorskip("tokenizers")
    from mxtrain.text.loader import TextLoader

    lengths = np.random.RandomState(1).randint(1, 30, 200)
    texts = LabelledTexts([("the " * int(length), None) for length in lengths], LABELS)
    tokens = TokenizerConfig(WordPiece((*SPECIAL, "the"), lowercase=True), max_length=40)

    def made(batches_per_pool: int) -> TextLoader:
        sampler = build_class_sampler(texts, NAMES, {}, 3)
        options = LoaderOptions(batch_size=16, seed=3, train=True, sampler=sampler)
        return TextLoader(texts, tokens, options, batches_per_pool)

    def padded(batches: list) -> int:
        return sum(inputs.size for inputs, *_ in batches)

    batches = read(made(16).epoch(1))
    indices = np.concatenate([index for *_, index in batches])
    assert np.bincount(LABELS[indices]).tolist() == [50] * 4
    assert all(np.array_equal(LABELS[index], label) for _, label, index in batches)
    assert padded(batches) < 0.75 * padded(read(made(1).epoch(1)))
    assert_same(read(made(16).epoch(1, start=4)), batches[4:])


# What is refused.


@pytest.mark.slow
def test_unknown_class_names_are_refused(describe_run: Any) -> None:
    weighted = describe_run("dataset.sampler=weighted", "dataset.class_weights={3: 2, 12: 4}").dataset
    assert weighted.class_weights == {"3": 2.0, "12": 4.0}
    mixed = describe_run("dataset.sampler=weighted", "dataset.class_weights={3: 2, cat: 4}").config
    assert json.loads(json.dumps(mixed, sort_keys=True)) == mixed  # as a checkpoint keeps it
    with pytest.raises(ConfigError, match=r"dataset.class_weights: there is no class '12'\..*They are: 0, 1, 2"):
        build_sampler(weighted, weighted.open(), 0)
    with pytest.raises(ConfigError, match="no class 'bb'. Did you mean 'b'"):
        build_class_sampler(LabelledTexts([("x", None)], [0]), ["a", "b"], {"bb": 2.0}, 0)
    for wrong, words in (
        (("dataset.sampler=balnced",), "Did you mean 'balanced'"),
        (("dataset.sampler=weighted",), "sampler=weighted needs class_weights"),
        (("dataset.class_weights={a: 2}",), "Type dataset.sampler=weighted"),
        (("dataset.class_weights={a: 0}", "dataset.sampler=weighted"), "dataset.class_weights.a=0"),
    ):
        with pytest.raises(ConfigError, match=words):
            describe_run(*wrong)


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        "task=segmentation",
        "task=masked_language_modeling",
        "task=regression",
        "task=regression dataset=glue dataset.task=stsb",
    ],
)
def test_samples_without_a_class_are_refused(describe_run: Any, options: str) -> None:
    with pytest.raises(ConfigError) as caught:
        describe_run("dataset.sampler=balanced", *options.split())
    (line,) = [line for line in str(caught.value).splitlines() if "sampler" in line]
    assert "have no single class" in line and "Type dataset.sampler=shuffle." in line


class Unlabelled:
    shape = (1, 8, 8)
    samples_per_task = 0

    def __len__(self) -> int:
        return 3


def test_source_without_labels_is_refused() -> None:
    dataset = Digits(sampler="balanced")
    for source in (Unlabelled(), Subset(Unlabelled(), np.arange(2))):
        with pytest.raises(DataError, match=r"Unlabelled does not say which class.*read_labels\(\)"):
            build_sampler(dataset, Splits(source, source, None, ["a", "b"]), 0)
    for labels, words in (([0.5, 1.0], "whole number for each of its 2"), ([0, 2], "sample 1 has the label 2")):
        with pytest.raises(DataError, match=words):
            build_class_sampler(LabelledTexts([("x", None)] * 2, labels), ["a", "b"], {}, 0)


# A whole run.


@pytest.mark.slow
def test_balanced_run_resumes_bit_exact(train_run: Any, tmp_path: Path, caplog: Any) -> None:
    """Broken off within an epoch and continued, it has the weights of a run that was not."""
    small = (
        "model=mlp",
        "model.hidden=[8]",
        "dataset=synthetic",
        "dataset.num_samples=400",
        "trainer.max_epochs=2",
        "dataset.shape=[1,6,6]",
        "dataset.batch_size=50",
        "dataset.sampler=weighted",
        "dataset.augment.flip=true",
        "dataset.class_weights={class 1: 5}",
        "early_stopping=off",
    )
    with caplog.at_level("INFO"):
        run, whole = train_run(*small, run_dir=tmp_path / "whole")
    assert re.search(r"dataset.sampler=weighted: an epoch has 320 samples.*class 1 3\d -> 11[45]", caplog.text)
    measured = np.concatenate([batch.index_B for batch in run.runner.context.data.val.epoch(1)])
    assert np.array_equal(measured, np.arange(len(measured)))  # validation never changes
    train_run(*small, "trainer.max_steps=10", run_dir=tmp_path / "broken")
    assert json.loads((tmp_path / "broken/status.json").read_text())["exit_code"] == 75
    _, continued = train_run(*small, run_dir=tmp_path / "broken")
    assert continued.weights_sha256 == whole.weights_sha256


def drawn_batches(epoch: int = 0, batch_size: int = 8, per_class: int = 4, label_N: np.ndarray = LABELS) -> np.ndarray:
    """The whole batches of an epoch, (number, batch size)."""
    drawn_N = GroupSampler(label_N, batch_size, per_class, 3).draw(epoch)
    assert len(drawn_N) == len(label_N)
    return drawn_N[: len(drawn_N) // batch_size * batch_size].reshape(-1, batch_size)


@pytest.mark.parametrize("batch_size, per_class", [(8, 4), (16, 4), (6, 2), (9, 3)])
def test_grouped_batches_have_equally_many_samples_of_distinct_classes(batch_size: int, per_class: int) -> None:
    for epoch in (0, 7):
        for sample_B in drawn_batches(epoch, batch_size, per_class):
            class_B = LABELS[sample_B % 200]
            assert len(np.unique(class_B[::per_class])) == batch_size // per_class
            np.testing.assert_array_equal(class_B, np.repeat(class_B[::per_class], per_class))
            assert len(np.unique(sample_B)) == batch_size, "a repeated sample is augmented differently"
            for sample_M in sample_B.reshape(-1, per_class):
                size = SIZES[LABELS[sample_M[0] % 200]]
                assert len(np.unique(sample_M % 200)) == min(size, per_class)


def test_grouped_samples_repeat_only_after_all_of_their_class() -> None:
    """Classes take turns, so all are drawn equally often; of 7 samples, 6 are drawn before one is repeated."""
    sample_N = drawn_batches(batch_size=8, per_class=2, label_N=LABELS).ravel()
    class_N = LABELS[sample_N % 200]
    assert np.bincount(class_N).tolist() == [50] * 4
    own_N = sample_N[class_N == 1]
    for number in range(0, 48, 6):
        part_N = own_N[number : number + 6]
        assert len(np.unique(part_N % 200)) == 6 and (part_N // 200 == number // 6).all()
    assert (sample_N[class_N == 3] < 200).all() and len(np.unique(sample_N[class_N == 3])) == 50
    assert (sample_N[class_N == 0] // 200).tolist() == list(range(50))


def test_classes_that_do_not_fill_a_batch_change() -> None:
    """Of four classes, three are in a batch: one is left out in each pass, and not always the same."""
    class_B3 = LABELS[drawn_batches(batch_size=3, per_class=1) % 200]
    assert (np.sort(class_B3, axis=1)[:, :-1] < np.sort(class_B3, axis=1)[:, 1:]).all()
    assert (np.bincount(class_B3.ravel()) > 30).all()
    assert len({tuple(row) for row in class_B3.tolist()}) > 10


def test_grouped_epochs_are_a_function_of_seed_and_epoch() -> None:
    chosen = [GroupSampler(LABELS, 8, 4, seed).draw(epoch) for seed, epoch in ((3, 1), (3, 1), (3, 2), (4, 1))]
    np.testing.assert_array_equal(chosen[0], chosen[1])
    assert (chosen[0] != chosen[2]).mean() > 0.5 and (chosen[0] != chosen[3]).mean() > 0.5


def test_workers_and_a_resume_keep_grouped_batches() -> None:
    source = MemorySource(np.zeros((200, 8, 8, 1), np.uint8), LABELS)

    def batches(world: World = ALONE, start: int = 0) -> list[list[int]]:
        given = {"input_shape": (1, 8, 8), "mean": (0.0,), "std": (1.0,), "batch_size": 16, "train": True, "seed": 3}
        loader = image_loader(source, **given, world=world, sampler=GroupSampler(LABELS, 16, 4, 3))
        return [[] if batch.index_B is None else batch.index_B.tolist() for batch in loader.epoch(1, start)]

    whole = batches()
    assert whole == [
        part.tolist() for part in np.array_split(GroupSampler(LABELS, 16, 4, 3).draw(1) % 200, range(16, 200, 16))
    ]
    assert [one + other for one, other in zip(batches(World(0, 2)), batches(World(1, 2)))] == whole
    assert batches(start=5) == whole[5:]


def test_empty_classes_are_in_no_grouped_batch() -> None:
    label_N = np.array([0, 0, 5, 5, 9], np.int32)
    assert set(label_N[GroupSampler(label_N, 2, 1, 0).draw(0) % 5]) <= {0, 5, 9}
    with pytest.raises(ConfigError, match="has 4 classes with 1 samples each, .* are of 3. Type dataset.batch_size=3"):
        GroupSampler(label_N, 4, 1, 0)
    with pytest.raises(ConfigError, match="no whole number of classes with 2 samples each. Type dataset.batch_size=2"):
        GroupSampler(label_N, 3, 2, 0)
    summary = GroupSampler(label_N, 4, 2, 0).summary
    assert (
        summary == "a batch has 2 samples of each of 2 classes; 1 of 3 classes have fewer samples, which are repeated"
    )


@pytest.mark.parametrize(
    "given, said",
    [
        ({"sampler": "grouped", "batch_size": 30}, "Type dataset.batch_size=32"),
        ({"samples_per_class": 5}, "samples_per_class is for sampler=grouped, but sampler=shuffle"),
    ],
)
def test_unfit_settings_of_groups_are_refused(given: Any, said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        Digits(**given)


def test_dataset_builds_the_grouped_sampler() -> None:
    dataset = Digits(sampler="grouped", batch_size=20, samples_per_class=5)
    chosen = build_sampler(dataset, dataset.open(), 1)
    assert isinstance(chosen, GroupSampler) and chosen.summary.startswith("a batch has 5 samples of each of 4 classes")
