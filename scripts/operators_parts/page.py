"""Formats the page docs/internals/operators.md from the cells of the sweep."""

from __future__ import annotations

import platform
from collections import Counter
from importlib.metadata import version
from pathlib import Path
from typing import Dict, List, Sequence, Tuple

from operators_parts.cells import CONDITIONS, has_bfloat16

Row = Dict[str, str]
ONEDNN = "2.4.4"
"""The oneDNN in the wheel of MXNet 1.9.1 (`DNNL_VERBOSE=1` prints it)."""
HEAD = """# Operators of MXNet

`scripts/operators` compares the operators that a network can hold with NumPy, in float64, forward and backward, under
each condition below, and writes this page: {versions},
with {threads}.
{counts}

The gradient is compared element by element with central differences of the reference. An error is the largest
difference divided by the largest value. A cell is right if it is below {tolerance}. Each cell runs in its own process.

`works around` means that the same call is right in mxtrain, `refuses` that a network with it gets an error before
training ([decision 28](../decisions/0028-mxnet-numerical-errors.md),
[`max_pooling.py`](../../mxtrain/engine/max_pooling.py), [`gradient_sums.py`](../../mxtrain/engine/gradient_sums.py),
[`zero_gradients.py`](../../mxtrain/engine/zero_gradients.py)).

## Conditions

{conditions}

## Wrong in MXNet

| operator | conditions | MXNet | mxtrain |
| --- | --- | --- | --- |
{wrong}

## Refused by MXNet

An exception, no wrong number. MXNet refuses arrays without elements ("batch of 0") in
`attach_grad`, before any operator.{bfloat16}

| operators | conditions | message |
| --- | --- | --- |
{refused}

## Right

These operators are right under every condition, except those refused in the table above:

{right}
"""
MEANINGS = {
    "view: reshape": "`NDArray.reshape` of the input's elements in one row",
    "view: rows": "`x[1:-1]` of a longer array",
    "transpose": "`x.T` of the turned array",
    "after Convolution": "the output of a convolution, in oneDNN's memory layout",
    "view after Convolution": "the same, through `NDArray.reshape`",
    "after FullyConnected and identity": "the output of a dense layer and an elementwise operator",
    "several consumers": "`x * x` reads the input, too",
    "inference mode": "`autograd.record(train_mode=False)`",
    "batch of 0": "an array without elements",
}


def page(plain: Sequence[Tuple[int, Sequence[Row]]], mended: Sequence[Row]) -> str:
    """Returns the page.

    Args:
        plain: number of threads, and the cells of MXNet alone.
        mended: cells with mxtrain, for operators with a wrong cell.
    """
    rows = [row for _, found in plain for row in found]
    counts = Counter(row["result"] for row in rows)
    names = list(dict.fromkeys(row["operator"] for row in rows))
    wrong = {row["operator"] for row in rows if row["result"] in ("wrong", "ended")}
    total = f"{len(names)} operators and options, {len(rows):,} cells: {counts['right']:,} right, "
    total += f"{counts['wrong']} wrong, {counts['refused']} refused, {counts['ended']} end the process."
    return HEAD.format(
        versions=f"MXNet {version('mxnet')}, oneDNN {ONEDNN}, NumPy {version('numpy')}, SciPy {version('scipy')}, "
        f"Python {platform.python_version()}, {_processor()}",
        threads=" and ".join(f"{n} thread{'s' if n > 1 else ''}" for n, _ in plain),
        counts=total,
        tolerance="1e-3 in float32 and float64 (norms 3e-3), 3e-2 in float16 and 8e-2 in bfloat16",
        conditions="\n".join(
            f"- {one.name}" + (f": {MEANINGS[one.name]}" if one.name in MEANINGS else "") for one in CONDITIONS
        ),
        wrong=_wrong(rows, mended),
        refused=_refused(rows),
        bfloat16="" if has_bfloat16() else " This processor has no AVX-512: oneDNN refuses bfloat16, as mxtrain does.",
        right=", ".join(f"`{name}`" for name in names if name not in wrong) + ".",
    )


def _wrong(rows: Sequence[Row], mended: Sequence[Row]) -> str:
    with_mxtrain = {(row["operator"], row["condition"]): row for row in mended}
    groups: Dict[Tuple[str, str, str], List[str]] = {}
    texts: Dict[Tuple[str, str, str], List[str]] = {}
    for row in rows:
        if row["result"] not in ("wrong", "ended"):
            continue
        other = with_mxtrain.get((row["operator"], row["condition"]), {"result": "unknown", "text": ""})
        does = {"right": "works around", "wrong": "wrong", "ended": other["text"]}.get(other["result"], "refuses")
        kind = row["text"] if row["result"] == "ended" else f"wrong {row['text'].partition(' ')[0]}"
        key = (row["operator"], kind, does)
        groups.setdefault(key, []).append(row["condition"])
        texts.setdefault(key, []).append(row["text"])
    return "\n".join(
        f"| `{name}` | {', '.join(dict.fromkeys(conditions))} | {_largest(texts[name, kind, does])} | {does} |"
        for (name, kind, does), conditions in groups.items()
    )


def _largest(texts: Sequence[str]) -> str:
    """Returns the text with the largest error."""
    return max(texts, key=lambda text: float(text.rpartition(" ")[2]) if " by " in text else 0.0)


def _refused(rows: Sequence[Row]) -> str:
    groups: Dict[Tuple[str, str], List[str]] = {}
    by_cell: Dict[Tuple[str, str], List[str]] = {}
    for row in rows:
        if row["result"] == "refused" and row["condition"] != "batch of 0":
            conditions = by_cell.setdefault((row["operator"], row["text"].replace("|", "/")[:90]), [])
            if row["condition"] not in conditions:
                conditions.append(row["condition"])
    for (name, text), conditions in by_cell.items():
        groups.setdefault((", ".join(conditions), text), []).append(f"`{name}`")
    return "\n".join(
        f"| {', '.join(names) if len(names) < 40 else f'{len(names)} operators'} | {conditions} | {escaped(text)} |"
        for (conditions, text), names in groups.items()
    )


def escaped(text: str) -> str:
    """Escapes a message of MXNet, in which a browser would not show `<size_t>`: it reads it as an element of HTML."""
    return text.replace("<", "&lt;")


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()
