"""Batches of frames: several workers, and an epoch that goes on in its middle."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mxtrain.data.loading.loader import LoaderOptions
from mxtrain.kvstore.world import World
from mxtrain.speech.digit_lines import DigitLines
from mxtrain.speech.loader import FrameLoader


def loader(**options: Any) -> FrameLoader:
    lines: Any = DigitLines(num_train=30, num_val=4, length=[1, 8], height=8).open().train
    own = {name: options.pop(name) for name in ("batches_per_pool", "batch_budget") if name in options}
    given = {"batch_size": 7, "train": True, "seed": 1, "encode": lambda frame_N: ((frame_N + 1) // 2,), **options}
    return FrameLoader(lines, LoaderOptions(**given), **own)


def arrays(batch: Any) -> Any:
    return [array.asnumpy() for array in (*batch.inputs, *batch.targets)]


@pytest.mark.parametrize("size", [2, 3])
def test_workers_share_each_batch_in_one_shape(size: int) -> None:
    parts = zip(*(loader(world=World(rank, size)).epoch(1) for rank in range(size)))
    shapes = []
    for whole, shares in zip(loader().epoch(1), parts):
        assert all(share.global_size == whole.size for share in shares)
        shares = [share for share in shares if share.size]  # three workers have a last batch of two
        for number, wanted in enumerate(arrays(whole)):
            np.testing.assert_array_equal(np.concatenate([arrays(share)[number] for share in shares]), wanted)
        shapes.append([share.inputs[1].asnumpy().max() for share in shares])
    assert any(max(longest) != min(longest) for longest in shapes), "a share alone would be shorter"


def test_an_epoch_continues_in_its_middle() -> None:
    whole = [arrays(batch) for batch in loader().epoch(2)]
    rest = [arrays(batch) for batch in loader().epoch(2, 3)]
    assert len(whole) == 5 and len(rest) == 2
    for one, other in zip(whole[3:], rest):
        for wanted, found in zip(one, other):
            np.testing.assert_array_equal(found, wanted)


def test_scores_and_characters_match_their_lines() -> None:
    given = loader(train=False)
    for batch in given.epoch():
        frames, lengths, labels, scores = arrays(batch)
        for row, index in enumerate(batch.index_B.tolist()):
            text = given.source.transcript(index).text
            assert "".join(str(int(one)) for one in labels[row] if one >= 0) == text == batch.meta[row].text
            assert lengths[row] == given.source.frame_N[index] and scores[row] == (lengths[row] + 1) // 2
            assert not frames[row, int(lengths[row]) :].any()
