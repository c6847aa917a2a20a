"""Whether two hundred starts of several workers all compute the same."""

from __future__ import annotations

import json
from typing import Any

from bench_parts.measured import Measured, Options, Target, say
from bench_parts.placements import ONE_THREAD
from bench_parts.processes import ProcessFailed, train
from bench_parts.workers import TINY, group
from mxtrain.errors import EXIT_BUDGET

STARTS = 200


def measure(options: Options) -> Measured:
    starts, folder = 2 if options.quick else STARTS, options.work

    def weights(name: str, *overrides: str) -> Any:
        given = [*TINY, "trainer.max_steps=3", *overrides]
        run_dir = train(given, folder / name, exit_codes=(EXIT_BUDGET,), environment=ONE_THREAD)
        return json.loads((run_dir / "status.json").read_text())["weights_sha256"]

    expected = weights("replicas", "parallel=data", "parallel.devices=cpu:2")
    wrong = failed = 0
    for number in range(starts):
        try:
            wrong += weights(f"soak-{number}", *group(2, servers=2)) != expected
        except ProcessFailed as error:
            failed += 1
            say(f"  start {number}: {error}")
        if number % 20 == 19:
            say(f"  {number + 1} starts, {wrong} wrong, {failed} failed")
    return Measured(
        notes=[
            "Each start trains three steps with two workers and two servers over all keys' first pull and push; its "
            "weights must be those of two replicas in one process, to the bit."
        ],
        targets=[
            Target(f"{starts} starts of two workers: other weights", wrong, 0, at_least=False),
            Target(f"{starts} starts of two workers: failed", failed, 0, at_least=False),
        ],
    )
