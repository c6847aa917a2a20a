"""Draws timeline.json of a run: python -m bench_parts.timeline RUN/timeline.json docs/training/timeline.png"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import List

COLORS = {"compute": "#2b7bba", "update": "#d95f0e", "exchange": "#31a354"}


def draw(timeline: Path, path: Path) -> None:
    """One row per device, one colour per kind of work."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    events = json.loads(timeline.read_text())["traceEvents"]
    names = {event["pid"]: event["args"]["name"] for event in events if event["ph"] == "M"}
    figure = Figure(figsize=(12, 0.8 + 0.6 * len(names)), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    for kind, color in COLORS.items():
        for pid in names:
            bars = [
                (e["ts"] / 1e3, max(e["dur"] / 1e3, 0.02))
                for e in events
                if e["ph"] == "X" and e["pid"] == pid and e["cat"] == kind
            ]
            axes.broken_barh(bars, (pid - 0.4, 0.8), facecolors=color, edgecolors="white", linewidth=0.2)
    axes.set_yticks(list(names), list(names.values()), fontsize=9)
    axes.invert_yaxis()
    axes.set_xlabel("ms")
    figure.legend(
        handles=[Patch(color=color, label=kind) for kind, color in COLORS.items()],
        loc="outside upper right",
        ncols=len(COLORS),
        fontsize=8,
        frameon=False,
    )
    figure.savefig(path)


def main(arguments: List[str]) -> None:
    draw(Path(arguments[0]), Path(arguments[1]))


if __name__ == "__main__":
    main(sys.argv[1:])
