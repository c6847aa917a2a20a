"""Run directories as mxtrain writes them, without training: status, settings, rows and checkpoints."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Dict, Mapping, Optional, Sequence

import numpy as np

from mxtrain.checkpoint.contents import Snapshot, write_contents

CONFIG = """task:
  _target_: mxtrain.task.classification.Classification
model:
  _target_: mxtrain.model.mlp.MLP
  hidden: [{hidden}]
optimizer:
  lr: {lr}
trainer:
  monitor: val/accuracy
early_stopping:
  monitor: ${{trainer.monitor}}
logger: {{}}
"""
HYDRA = """hydra:
  overrides:
    task:
    - optimizer.lr={lr}
{typed}  runtime:
    choices:
      task: {task}
      model: {model}
      dataset: digits
      optimizer: adam
  verbose: false
"""


def write_run(
    path: Path,
    state: str = "finished",
    best: Optional[float] = 0.9,
    step: int = 40,
    task: str = "classification",
    model: str = "mlp",
    lr: float = 0.001,
    exit_code: Optional[int] = 0,
    direction: str = "max",
    typed: str = "",
    metrics: Optional[Mapping[str, float]] = None,
    checkpoints: Optional[Mapping[int, float]] = None,
    rows: Sequence[Mapping[str, Any]] = (),
    meta: Optional[Mapping[str, Any]] = None,
    monitor: str = "val/accuracy",
) -> Path:
    """Writes a run directory; `checkpoints` is step -> metric."""
    (path / ".hydra").mkdir(parents=True)
    status: Dict[str, Any] = {
        "state": state,
        "exit_code": exit_code,
        "cause": "",
        "epoch": 2,
        "step": step,
        "best": None if best is None else {"metric": monitor, "value": best, "step": step},
        "direction": direction,
        "checkpoint": None,
        "weights_sha256": "ab" * 32,
        "samples_per_s": 1234.5,
        "metrics": dict(metrics or {}),
        "wall_s": 75.0,
    }
    (path / "status.json").write_text(json.dumps(status, indent=2))
    (path / ".hydra" / "config.yaml").write_text(CONFIG.format(lr=lr, hidden=step))
    (path / ".hydra" / "hydra.yaml").write_text(HYDRA.format(lr=lr, task=task, model=model, typed=typed))
    (path / "meta.json").write_text(json.dumps(meta or {"argv": ["mxtrain", f"model={model}", f"optimizer.lr={lr}"]}))
    if rows:
        (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for one, metric in (checkpoints or {}).items():
        write_checkpoint(path / "checkpoints" / f"step-{one:08d}", one, metric)
    return path


def write_checkpoint(path: Path, step: int, metric: float, weight: float = 1.0) -> None:
    path.parent.mkdir(exist_ok=True)
    arrays = {"model": {"0.weight": np.full((4, 3), weight, np.float32), "0.bias": np.zeros(3, np.float32)}}
    write_contents(Snapshot(step, 1, arrays, {"run": {}}, metric, "max", "val/accuracy"), path)


def size_of(path: Path) -> int:
    """Bytes of all files below a folder, counted in another way than the package does."""
    return sum(os.lstat(file).st_size for file in path.rglob("*") if file.is_file() and not file.is_symlink())


def tree(path: Path) -> Dict[str, bytes]:
    """All files below a folder with their content."""
    return {str(file.relative_to(path)): file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file()}
