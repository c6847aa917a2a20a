"""What a sweep shows: each job as it ends, and all of them at the end, best first."""

from __future__ import annotations

from typing import Any, List

from hydra.experimental.callback import Callback
from omegaconf import DictConfig

from mxtrain.cli.outcome import Outcome, outcomes


class SweepReport(Callback):
    """A Hydra callback. Sweeps whose launcher runs jobs in other processes report there; here only what ran here."""

    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:
        ended = [outcome for outcome in outcomes.all if outcome.number is not None]
        if ended:
            print_table(ended, str(config.hydra.sweep.dir))


def print_table(ended: List[Outcome], sweep_dir: str) -> None:
    """Number, overrides, state, best value and where it was reached."""
    from rich.console import Console
    from rich.table import Table

    table = Table("job", "overrides", "state", "best", "step", box=None, pad_edge=False)
    for outcome in ended:
        best = outcome.result.best or {}
        value = f"{best['value']:.4f} {best['metric']}" if best else "-"
        table.add_row(
            str(outcome.number), " ".join(outcome.overrides), outcome.result.state, value, str(best.get("step", "-"))
        )
    console = Console()
    console.print()
    console.print(table)
    console.print(f"\ncompare: tensorboard --logdir {sweep_dir}", soft_wrap=True, highlight=False)
