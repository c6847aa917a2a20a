"""Shows how metrics fall while samples are corrupted more and more.

A dataset says how its samples are corrupted (`BaseDataset.corrupted`); `eval` measures a split anew for each corruption
and severity.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, List, Mapping, Sequence, Tuple, Union

from mxtrain.types import Artifact, Figure, Table

if TYPE_CHECKING:
    from PIL import Image

    Row = Tuple[str, int, Mapping[str, float]]
    """Corruption, severity, and values by name; "none" and 0 of the samples as they are."""

CLEAN = "none"
_NOT_DRAWN = ("loss", "samples_per_s")
_COLUMNS = 3


def corruption_artifacts(rows: Sequence[Row], title: str) -> List[Artifact]:
    """Returns the table of all passes, and metrics over severity, a line for each corruption.

    Args:
        rows: of all passes, that of the samples as they are first.
        title: names split and step.
    """
    names = [name for name in rows[0][2] if name != "samples_per_s"]
    table: List[List[Union[str, int, float]]] = [
        [name, severity, *(values[column] for column in names)] for name, severity, values in rows
    ]
    return [
        Table("corruptions", ["corruption", "severity", *names], table),
        Figure("corruptions", lambda _: draw_corruptions(rows, title)),
    ]


def draw_corruptions(rows: Sequence[Row], title: str) -> Image.Image:
    """Draws each metric over severity, a line for each corruption. Severity 0 is the uncorrupted samples."""
    import numpy as np
    from matplotlib import colormaps
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from PIL import Image

    (_, _, clean), *corrupted_rows = rows
    metrics = [name for name in clean if name not in _NOT_DRAWN] or ["loss"]
    corruptions = list(dict.fromkeys(name for name, _, _ in corrupted_rows))
    columns = min(_COLUMNS, len(metrics))
    lines = -(-len(metrics) // columns)
    figure = Figure(figsize=(4.6 * columns + 1.8, 3.8 * lines), dpi=110, layout="constrained")
    canvas = FigureCanvasAgg(figure)
    figure.suptitle(f"under corruption: {title}")
    artists: List[Any] = []  # lines of matplotlib's
    for position, metric in enumerate(metrics, start=1):
        axes = figure.add_subplot(lines, columns, position)
        artists = []
        for number, corruption in enumerate(corruptions):
            corrupted = [(s, values[metric]) for name, s, values in corrupted_rows if name == corruption]
            points = [(0, clean[metric]), *corrupted]
            # Ten colours, then ten dashed ones.
            colour, dash = colormaps["tab10"](number % 10), "-" if number < 10 else "--"
            artists += axes.plot(*zip(*points), marker="o", markersize=3.5, color=colour, linestyle=dash)
        values_P = np.array([values[metric] for _, _, values in rows])
        if values_P.min() >= 0 and values_P.max() <= 1:  # a rate: the whole way down is to be seen
            axes.set_ylim(0, 1.02)
        axes.axhline(clean[metric], color="0.6", linewidth=0.8, linestyle=":")
        axes.set(xlabel="severity (0: as they are)", ylabel=metric, xticks=sorted({at for _, at, _ in rows}))
        axes.grid(alpha=0.25)
    figure.legend(artists, corruptions, loc="outside right center", frameon=False)
    canvas.draw()
    return Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB")
