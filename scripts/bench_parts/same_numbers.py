"""`verify` over placements and networks: the largest relative difference of each."""

from __future__ import annotations

import json
from typing import Dict, List, Tuple

from bench_parts.measured import Measured, Options, Target, say
from bench_parts.processes import ROOT, run, untouched_environment

TOLERANCE = 1e-6
PLACEMENTS: Dict[str, List[str]] = {
    "data 2": ["parallel=data", "parallel.devices=cpu:2"],
    "data 3": ["parallel=data", "parallel.devices=cpu:3"],
    "model 2": ["parallel=model", "parallel.devices=cpu:2"],
    "pipeline 2": ["parallel=pipeline", "parallel.devices=cpu:2", "parallel.microbatches=4"],
    "pipeline 4": ["parallel=pipeline", "parallel.devices=cpu:4", "parallel.microbatches=4"],
    "hybrid 2 x 2": ["parallel=hybrid", "parallel.devices=cpu:4", "parallel.stages=2", "parallel.microbatches=2"],
}
LARGE = ["dataset=synthetic", "dataset.num_samples=80", "dataset.batch_size=8"]
NETWORKS: Dict[str, List[str]] = {
    "mlp": ["model=mlp"],
    "lenet": ["model=lenet"],
    "resnet": ["model=resnet"],
    "mobilenet": ["model.name=mobilenet0.5", *LARGE, "dataset.shape=[3,64,64]"],
    "densenet": ["model.name=densenet121", *LARGE, "dataset.shape=[3,224,224]"],
    "the user's": ["--config-dir", str(ROOT / "examples" / "own_code" / "conf"), "model=small"],
}
ORDERED = ("data 2", "model 2", "pipeline 2", "pipeline 4", "hybrid 2 x 2")
"""Where sums have the same order as on one device: every bit must be equal."""


def measure(options: Options) -> Measured:
    found = Measured(notes=[
        "`python -m mxtrain verify`, 3 steps, the last one's batch smaller and odd: largest difference of any gradient "
        "or parameter over the largest value of that tensor, in float64. Beside that, in float32, every bit must be "
        "equal where sums have the same order as on one device.",
        "mobilenet is GluonCV's mobilenet0.5 at 64 px, densenet its densenet121 at 224 px, resnet and lenet ours on "
        "the default data, the user's network that of examples/own_code.",
    ])  # fmt: skip
    networks = ["mlp"] if options.quick else list(NETWORKS)
    table: Dict[str, Dict[str, float]] = {}
    unequal: List[str] = []
    for network in networks:
        for placement in PLACEMENTS:
            worst, bits_differ, compared = _verify(network, placement, options)
            table.setdefault(network, {})[placement] = worst
            say(f"  {network}, {placement}: {worst:.1e}{', bits differ' if bits_differ else ''}")
            if bits_differ or compared != (placement in ORDERED):
                unequal.append(f"{network}, {placement}")
    largest = max(value for values in table.values() for value in values.values())
    found.targets = [
        Target("largest relative difference in float64", largest, TOLERANCE, at_least=False),
        Target("comparisons in float32 that are not equal to the bit", float(len(unequal)), 0, at_least=False),
    ]
    found.details = {"largest relative difference": table, "bits differ": unequal}
    found.table = _table(table)
    return found


def _verify(network: str, placement: str, options: Options) -> Tuple[float, bool, bool]:
    """Largest relative difference; whether bits differ; whether they were compared."""
    output = options.work / "verify.json"
    arguments = ["-m", "mxtrain", "verify", *NETWORKS[network], *PLACEMENTS[placement], f"output={output}"]
    run(arguments, {**untouched_environment(), "PYTHONPATH": _path()}, options.work, exit_codes=(0, 1))
    result = json.loads(output.read_text())
    output.unlink()
    worst = max(max(layer["gradient_rel"], layer["parameter_rel"]) for layer in result["layers"])
    bits = result["bits"]
    return worst, any(layer["gradient_rel"] or layer["parameter_rel"] for layer in bits), bool(bits)


def _path() -> str:
    return f"{untouched_environment()['PYTHONPATH']}:{ROOT / 'examples' / 'own_code'}"


def _table(table: Dict[str, Dict[str, float]]) -> List[List[str]]:
    rows = [["network", *PLACEMENTS]]
    for network, values in table.items():
        rows.append([network, *(f"{value:.1e}" if value else "0" for value in values.values())])
    return rows
