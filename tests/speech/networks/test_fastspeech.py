"""FastSpeech: the length regulator, and that padding and neighbours change nothing."""

from __future__ import annotations

from typing import Any, List

import numpy as np
import pytest

from mxtrain.engine.backend import autograd, nd
from mxtrain.metric.meter import LossWeights, Meter
from mxtrain.model.parameters import distinct_parameters
from mxtrain.model.prepare import prepare_network
from mxtrain.speech.aligned_dataset import input_shapes
from mxtrain.speech.aligned_rows import frame_positions
from mxtrain.speech.fastspeech import FastSpeech
from mxtrain.speech.frames import MelCepstralDistortion, MelError
from mxtrain.speech.losses import FrameL1, FrameL2
from mxtrain.speech.networks.fastspeech import regulate

DURATIONS = [[2, 0, 3, 1], [4, 2], [1, 1, 1]]


def test_the_regulator_copies_each_symbol_as_often_as_its_duration() -> None:
    x_BLU = np.random.RandomState(0).uniform(size=(3, 4, 5)).astype(np.float32)
    index = np.full((3, 8), -1, np.float32)
    for row, durations in enumerate(DURATIONS):
        index[row, : sum(durations)] = np.repeat(np.arange(len(durations)), durations)
    given = nd.array(x_BLU)
    given.attach_grad()
    with autograd.record():
        found = regulate(nd, given, nd.array(index))
        total = (found * nd.array(index >= 0).expand_dims(2)).sum()
    total.backward()
    for row, durations in enumerate(DURATIONS):
        wanted = np.repeat(x_BLU[row, : len(durations)], durations, axis=0)
        np.testing.assert_array_equal(found.asnumpy()[row, : sum(durations)], wanted)
        np.testing.assert_array_equal(given.grad.asnumpy()[row, : len(durations), 0], durations)


def batch(rows: List[List[int]], length: int, frames: int) -> List[nd.NDArray]:
    symbols, index = np.zeros((len(rows), length), np.int32), np.full((len(rows), frames), -1, np.float32)
    place = np.zeros((len(rows), frames, 4), np.float32)
    for row, durations in enumerate(rows):
        symbols[row, : len(durations)] = np.arange(len(durations)) + len(durations) % 3
        index[row, : sum(durations)] = np.repeat(np.arange(len(durations)), durations)
        place[row, : sum(durations)] = frame_positions(np.array(durations))
    lengths = nd.array([len(durations) for durations in rows])
    return [nd.array(symbols, dtype="int32"), lengths, nd.array(index), nd.array(place)]


@pytest.mark.parametrize("hybrid", [False, True])
def test_padding_and_other_samples_do_not_affect_frames_or_gradients(hybrid: bool) -> None:
    model = FastSpeech(units=8, hidden_size=12, encoder_layers=1, decoder_layers=1, decoder_kernel=3)
    shapes = input_shapes(4, 16)
    network: Any = prepare_network(
        model,
        num_classes=6,
        input_shape=shapes,
        seed=0,
        network=model.build_symbols(6, shapes, 8),
        output_shapes=[(16, 6)],
    ).network
    if hybrid:
        network.hybridize(static_alloc=True)
    right = np.random.RandomState(1).uniform(size=(3, 32, 6)).astype(np.float32)

    def step(rows: List[int], length: int, frames: int) -> Any:
        given = [DURATIONS[row] for row in rows]
        counts = nd.array([sum(one) for one in given])
        with autograd.record():
            found = network(*batch(given, length, frames))
            loss, weight = FrameL1().build(0, True)(found, nd.array(right[rows, :frames]), counts)
            total = loss.sum()
        total.backward()
        assert weight.asnumpy().tolist() == counts.asnumpy().tolist()
        values = {name: one.grad().asnumpy() for name, one in distinct_parameters(network).items()}
        return found.asnumpy(), values

    together, gradients = step([0, 1, 2], 6, 32)
    apart = [step([row], len(DURATIONS[row]), sum(DURATIONS[row])) for row in range(3)]
    for row, (alone, _) in enumerate(apart):
        np.testing.assert_allclose(together[row, : sum(DURATIONS[row])], alone[0], atol=2e-5)
    for name, gradient in gradients.items():
        np.testing.assert_allclose(gradient, sum(one[name] for _, one in apart), atol=5e-5, err_msg=name)
    assert any(np.abs(gradient).max() > 0.01 for gradient in gradients.values())


def frames_of_batch() -> Any:
    draw = np.random.RandomState(2)
    found, right = draw.normal(size=(2, 5, 8)), draw.normal(size=(2, 5, 8))
    unit = draw.uniform(1, 9, 8).astype(np.float32)
    return found.astype(np.float32), right.astype(np.float32), np.array([5, 3]), unit


@pytest.mark.parametrize("block, of_difference", [(FrameL1, np.abs), (FrameL2, np.square)])
def test_losses_are_sums_over_frames_that_count(block: Any, of_difference: Any) -> None:
    found, right, counts, _ = frames_of_batch()
    loss, weight = block().build(0, True)(nd.array(found), nd.array(right), nd.array(counts), nd.array([1]))
    wanted = [of_difference(found - right)[row, :count].mean(axis=1).sum() for row, count in enumerate(counts)]
    np.testing.assert_allclose(loss.asnumpy(), wanted, rtol=1e-5)
    assert weight.asnumpy().tolist() == [5, 3]


def test_metrics_are_means_over_frames_that_count_in_decibels() -> None:
    import scipy.fft

    found, right, counts, unit = frames_of_batch()
    metrics = {"mel_error": MelError(), "distortion": MelCepstralDistortion(num_cepstra=4)}
    meter = Meter(metrics, 8, LossWeights(True))
    targets = [nd.array(right), nd.array(counts), nd.array(np.tile(unit, (2, 1)))]
    loss = FrameL1().build(0, True)(nd.array(found), *targets[:2])
    values = meter.values(meter(*loss, nd.array(found), *targets).asnumpy().astype(np.float64), 2)
    difference = np.concatenate([((found - right) * unit)[row, :count] for row, count in enumerate(counts)])
    assert values["mel_error"] == pytest.approx(np.abs(difference).mean(), rel=1e-5)
    cepstra = scipy.fft.dct(difference, norm="ortho", axis=1)[:, 1:5]
    assert values["distortion"] == pytest.approx(np.sqrt((cepstra**2).sum(axis=1) / 8).mean(), rel=1e-5)


def test_distortion_is_the_root_mean_square_of_the_difference_without_the_level() -> None:
    bands = 10 * np.cos(np.pi * (np.arange(16) + 0.5) * 3 / 16) + 7
    metric = MelCepstralDistortion()
    targets = [nd.zeros((1, 2, 16)), nd.array([2]), nd.ones((1, 16))]
    sums = metric.measure(nd, [nd.array(np.tile(bands, (1, 2, 1)))], targets, 16).asnumpy()
    assert metric.value(sums, 1) == pytest.approx(10 / np.sqrt(2), rel=1e-5)
