"""The table and the image of metrics under corruption."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mxtrain.training.robustness import corruption_artifacts

ROWS: Any = [
    ("none", 0, {"loss": 0.1, "accuracy": 0.9, "samples_per_s": 5.0}),
    ("noise", 1, {"loss": 0.2, "accuracy": 0.8, "samples_per_s": 5.0}),
    ("noise", 5, {"loss": 0.9, "accuracy": 0.3, "samples_per_s": 5.0}),
    ("fog", 1, {"loss": 0.3, "accuracy": 0.7, "samples_per_s": 5.0}),
    ("fog", 5, {"loss": 0.8, "accuracy": 0.4, "samples_per_s": 5.0}),
]


def test_the_table_has_a_row_for_each_pass_the_clean_one_first() -> None:
    table, _ = corruption_artifacts(ROWS, "val, step 3")
    assert table.name == "corruptions" and list(table.header) == ["corruption", "severity", "loss", "accuracy"]
    assert [list(row) for row in table.rows] == [
        ["none", 0, 0.1, 0.9],
        ["noise", 1, 0.2, 0.8],
        ["noise", 5, 0.9, 0.3],
        ["fog", 1, 0.3, 0.7],
        ["fog", 5, 0.8, 0.4],
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    "names", [[], ["accuracy"], ["accuracy", "top_k"], ["a", "b", "c", "d"]], ids=lambda names: f"{len(names)} metrics"
)
def test_the_image_has_a_plot_for_each_metric_and_a_line_for_each_corruption(names: Any) -> None:
    rows = [(corruption, severity, {"loss": 0.5, **{name: 0.5 for name in names}}) for corruption, severity, _ in ROWS]
    _, image = corruption_artifacts(rows, "val, step 3")
    drawn = image.draw(16)
    sizes = {0: (704, 418), 1: (704, 418), 2: (1210, 418), 4: (1716, 836)}  # a pixel more or less
    assert drawn.mode == "RGB" and np.abs(np.subtract(drawn.size, sizes[len(names)])).max() <= 1
    colours = {tuple(colour) for colour in np.asarray(drawn).reshape(-1, 3)}
    assert {(31, 119, 180), (255, 127, 14)} <= colours and (44, 160, 44) not in colours  # tab10's first two
