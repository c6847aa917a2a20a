"""Frames as images: which way up they are."""

from __future__ import annotations

import numpy as np
import pytest

from mxtrain.speech.frame_figure import SpokenFrames, as_grey


@pytest.mark.parametrize("is_sound", [True, False])
def test_orientation_of_frame_figures(is_sound: bool) -> None:
    frames_TF = np.zeros((6, 4), np.float32)
    frames_TF[2, 0] = 1  # the lowest band, or the top of a column
    grey = np.asarray(as_grey(SpokenFrames(frames_TF, "a", "a", is_sound)))
    assert grey.shape == (4, 6)
    assert np.argwhere(grey).tolist() == [[3 if is_sound else 0, 2]]
