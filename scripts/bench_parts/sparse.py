"""Tables whose gradients hold a batch's rows alone, against PyTorch's sparse ones and MXNet's dense and sparse."""

from __future__ import annotations

from typing import Dict

from bench_parts.measured import Measured, Options, Series, ratios
from bench_parts.processes import default_environment, same_threads_environment, tuned_environment
from bench_parts.sparse_sizes import BATCH, FIELDS, UNITS
from bench_parts.turns import Side, in_turns

LAZY, EXACT = "mxtrain, lazy updates", "mxtrain, exact updates"
GLUON, GLUON_SPARSE = "Gluon, dense", "Gluon, sparse_grad=True"
TORCH = "PyTorch, sparse=True and SparseAdam"
FULL_PASS = (EXACT, GLUON)
SIZES = {"1 M rows": (1_000_000, 40, 8), "10 M rows": (10_000_000, 40, 6)}
QUICK_SIZES = {"1000 rows": (1000, 2, 2)}
DENSE_EVERY = 20
"""What passes over all rows makes so many times fewer steps in a block."""


def measure(options: Options) -> Measured:
    found = Measured(notes=[
        f"A table of rows x {UNITS}, {BATCH} samples of {FIELDS} ids a step ({BATCH * FIELDS} ids, each as likely as "
        "another), a dense layer behind it, sigmoid cross entropy, Adam. All sides get the same batches, which are on "
        "hand; ours looks for distinct ids in the loader's thread (mxtrain's step, without the command line around).",
        "PyTorch: nn.Embedding(sparse=True) with SparseAdam, whose updates are lazy, as ours are with "
        "optimizer.lazy_update=true. Exact updates are those of the dense run, to the bit. Gluon: a hybridized loop "
        "with gluon.Trainer; with sparse_grad=True its gradients are row_sparse and its updates lazy. As many threads "
        "as there are cores.",
    ])  # fmt: skip
    if not options.torch_python:
        found.notes.append("No --torch-python was given: PyTorch was not measured.")
    for name, (rows, steps, blocks) in (QUICK_SIZES if options.quick else SIZES).items():
        if options.only.lower() in name.lower():
            _run(name, rows, options.steps or steps, options.turns or blocks, options, found)
    return found


def _run(name: str, rows: int, steps: int, blocks: int, options: Options, found: Measured) -> None:
    folder = options.work / name.replace(" ", "_")
    folder.mkdir()
    few = max(1, steps // DENSE_EVERY)

    def own(kind: str, count: int, environment: Dict[str, str]) -> Side:
        return Side(["-m", "bench_parts.sparse_side", kind, str(rows), str(count)], environment)

    sides = {LAZY: own("lazy", steps, tuned_environment()), EXACT: own("exact", few, tuned_environment()),
             GLUON: own("gluon", few, default_environment()),
             GLUON_SPARSE: own("gluon_sparse", steps, default_environment())}  # fmt: skip
    if options.torch_python:
        sides[TORCH] = Side(["-m", "bench_parts.torch_sparse", str(rows), str(steps)], same_threads_environment(),
                            python=options.torch_python)  # fmt: skip
    peak_MiB: Dict[str, float] = {}
    seconds = in_turns(sides, blocks, folder, peak_MiB)
    counts = {name: few if name in FULL_PASS else steps for name in sides}
    step_ms = {side: [1000 * value / counts[side] for value in values] for side, values in seconds.items()}
    for side, values in step_ms.items():
        found.series.append(Series(f"{name}: {side}, a step", "ms", values))
        found.details[f"{name}: {side}, peak MiB"] = round(peak_MiB[side])
    if TORCH in step_ms:
        found.compare(f"{name}: PyTorch's time / ours, lazy", step_ms[TORCH], step_ms[LAZY], 1.2)
    pairs = ((GLUON, LAZY), (GLUON, EXACT), (GLUON_SPARSE, LAZY))
    for other, side in pairs:
        shares = ratios(step_ms[other], step_ms[side])
        found.series.append(Series(f"{name}: {other}, time / {side}, pair by pair", "ratio", shares))
