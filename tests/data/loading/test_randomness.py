import numpy as np
import pytest

from mxtrain.data.loading.randomness import Draw, beta, bits, integers, permutation, uniform, uniform_rows
from mxtrain.recommendation.loader import RecommendationDraw
from mxtrain.reinforcement.draws import ReinforcementDraw
from mxtrain.speech.draws import SpeechDraw
from mxtrain.text.draws import TextDraw
from mxtrain.vision.draws import VisionDraw


@pytest.mark.parametrize("field", [VisionDraw, TextDraw, SpeechDraw, RecommendationDraw, ReinforcementDraw])
def test_streams_of_fields_are_distinct(field):
    numbers = [int(one) for kind in (Draw, field) for one in kind]
    assert len(numbers) == len(set(numbers)) == len(Draw) + len(field)


def test_hash_is_splitmix64():
    # From a state of 0, SplitMix64 first gives these (the reference code of Vigna, prng.di.unimi.it/splitmix64.c).
    from mxtrain.data.loading.uniform_hash import mix_integer

    assert mix_integer(0) == 0xE220A8397B1DCDAF


def test_values_never_change():
    assert bits(1, 2, np.array([3, 4]), VisionDraw.FLIP).tolist() == [8382784181659370397, 9680804594961780017]
    assert permutation(0, 0, 8).tolist() == [2, 1, 5, 7, 0, 3, 4, 6]


def test_a_number_depends_on_its_sample_only():
    whole = uniform(5, 1, np.arange(100), VisionDraw.FLIP)
    assert np.array_equal(uniform(5, 1, np.array([70, 3]), VisionDraw.FLIP), whole[[70, 3]])


@pytest.mark.parametrize(
    "other", [(6, 1, VisionDraw.FLIP), (5, 2, VisionDraw.FLIP), (5, 1, VisionDraw.CROP_TOP), (-5, 1, VisionDraw.FLIP)]
)
def test_every_coordinate_matters(other):
    index = np.arange(4000)
    seed, epoch, draw = other
    correlation = np.corrcoef(uniform(5, 1, index, VisionDraw.FLIP), uniform(seed, epoch, index, draw))[0, 1]
    assert abs(correlation) < 0.06


def test_uniform_is_uniform():
    counts = np.bincount(integers(0, 0, np.arange(100_000), VisionDraw.CROP_TOP, 10), minlength=10)
    assert counts.sum() == 100_000 and len(counts) == 10
    assert ((counts - 10_000) ** 2 / 10_000).sum() < 30  # chi-square, 9 degrees of freedom


def test_permutation_visits_all_and_changes_with_epoch():
    first, second = permutation(0, 0, 1000), permutation(0, 1, 1000)
    assert sorted(first) == list(range(1000))
    assert (first == second).mean() < 0.02


@pytest.mark.parametrize("alpha", [0.01, 0.2, 1.0, 4.0])
def test_beta_has_its_moments(alpha):
    share = beta(0, 0, np.arange(50_000), alpha)
    assert share.min() >= 0 and share.max() <= 1
    assert share.mean() == pytest.approx(0.5, abs=0.01)
    assert share.var() == pytest.approx(1 / (4 * (2 * alpha + 1)), rel=0.03)
    assert np.array_equal(beta(0, 0, np.array([7, 40_000]), alpha), share[[7, 40_000]])


def test_rows_of_numbers_are_uniform_and_do_not_resemble_each_other():
    row_BN = uniform_rows(5, 1, np.arange(40), VisionDraw.TARGET_SAMPLE, 5000)
    assert row_BN.dtype == np.float32 and row_BN.min() >= 0 and row_BN.max() < 1
    counts = np.bincount((row_BN * 10).astype(int).ravel(), minlength=10)
    assert ((counts - 20_000) ** 2 / 20_000).sum() < 30  # chi-square, 9 degrees of freedom
    both = np.corrcoef(row_BN) - np.eye(40)
    assert np.abs(both).max() < 0.07 and np.abs(np.corrcoef(row_BN.T[:200])[~np.eye(200, dtype=bool)]).mean() < 0.2
    assert len(np.unique(row_BN)) > 0.98 * row_BN.size
    first_BN = uniform_rows(0, 0, np.arange(40), VisionDraw.TARGET_SAMPLE, 40)
    assert np.diag(first_BN).min() > 0 and not np.triu(first_BN == first_BN.T, 1).any()
    np.testing.assert_array_equal(uniform_rows(5, 1, np.array([7, 3]), VisionDraw.TARGET_SAMPLE, 9), row_BN[[7, 3], :9])
    assert not (uniform_rows(5, 1, np.arange(40), VisionDraw.REGION_SAMPLE, 5000) == row_BN).mean() > 0.01


def test_rows_of_numbers_never_change():
    rows = uniform_rows(1, 2, np.array([3]), VisionDraw.REGION_SAMPLE, 3)
    np.testing.assert_array_equal(rows * 2**24, [[3050717, 16209430, 4639221]])
