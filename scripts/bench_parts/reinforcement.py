"""Reinforcement learning: PPO on CartPole-v1 against a PyTorch loop of the same algorithm, and how long it takes to
solve it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Dict, List

from bench_parts.clock import ProcessorClock
from bench_parts.default_run import run_seeds
from bench_parts.measured import Measured, Options, Series, Target, in_turn
from bench_parts.processes import ROOT, run, same_threads_environment, train, untouched_environment

NUM_ENVS, STEPS, PASSES = 8, 32, 10
"""Those of the default, and of torch_agent.py."""
ROLLOUTS, BEFORE, REPETITIONS = 120, 20, 5
MIN_RATIO, MAX_WALL_S, SOLVED = 1.2, 60.0, 475.0
OURS, TORCH = "mxtrain", "PyTorch"


def measure(options: Options) -> Measured:
    """The two sides in turn with one thread and with all cores, and the default's five seeds."""
    found = Measured(notes=[
        f"`task=reinforcement_learning`, and a PyTorch loop with the same network (2 x 64), {NUM_ENVS} environments, "
        f"roll-outs of {STEPS} steps, {PASSES} passes of 256 samples, Adam and clipping (scripts/bench_parts/"
        f"torch_agent.py): {ROLLOUTS} roll-outs, behind {BEFORE} that are not counted, each time in a process of its "
        "own. Ours is the command as users type it, with its rows and curves; theirs writes nothing. Processor time is "
        "that of all threads.",
    ])  # fmt: skip
    if not options.torch_python:
        found.notes.append("No --torch-python was given: PyTorch was not measured.")
    for threads in ("1 thread", "all cores"):
        _race(threads, options, found)
    _solve(options, found)
    return found


def _race(threads: str, options: Options, found: Measured) -> None:
    counted, before = (4, 5) if options.quick else (ROLLOUTS, BEFORE)
    is_one = threads == "1 thread"
    ours = {**untouched_environment(), **({"OMP_NUM_THREADS": "1"} if is_one else {})}
    theirs = {**same_threads_environment(), **({"OMP_NUM_THREADS": "1"} if is_one else {})}
    sides = {OURS: lambda number: _ours(counted, before, options.work / f"{threads[0]}{number}", ours)}
    if options.torch_python:
        arguments = [str(ROOT / "scripts/bench_parts/torch_agent.py"), str(counted), str(before)]
        sides[TORCH] = lambda number: _last_line(arguments, theirs, options)
    measured = in_turn(sides, options.turns or (1 if options.quick else REPETITIONS))
    for unit, name in (("processor_s", "second of the processor"), ("wall_s", "second")):
        rates = {side: [one["steps"] / one[unit] for one in values] for side, values in measured.items()}
        for side, values in rates.items():
            found.series.append(Series(f"{side}, {threads}, environment steps in a {name}", "steps/s", values))
        if TORCH in rates:
            found.compare(f"{OURS} / {TORCH}, {threads}, by the {name}", rates[OURS], rates[TORCH], MIN_RATIO)


def _ours(counted: int, before: int, folder: Path, environment: Dict[str, str]) -> Dict[str, Any]:
    clock = folder / "clock.json"
    overrides = [
        "task=reinforcement_learning", "trainer.max_epochs=1", f"dataset.rollouts_per_epoch={before + counted}",
        "trainer.test=false", "dataset.val_episodes=1", *ProcessorClock.overrides(clock, before * PASSES),
    ]  # fmt: skip
    train(overrides, folder, environment=environment)
    found: Dict[str, Any] = json.loads(clock.read_text())
    found["steps"] = round(found["steps"] * NUM_ENVS * STEPS / PASSES)  # of optimizer steps, steps in environments
    return found


def _last_line(arguments: List[str], environment: Dict[str, str], options: Options) -> Dict[str, Any]:
    done = run(arguments, environment, options.work, python=options.torch_python)
    found: Dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _solve(options: Options, found: Measured) -> None:
    """The whole default for each seed, from the command to its exit: training, validations, and 100 episodes at the
    end."""
    seeds, details = run_seeds(options, ["task=reinforcement_learning"])
    returns = [status["metrics"]["test/return"] for status in seeds["status"]]
    found.series += [
        Series("default run, command to exit", "s", seeds["wall"]),
        Series("default run, processor time of all threads", "s", seeds["cpu"]),
        Series("default run, mean return of 100 test episodes", "return", returns),
    ]
    found.targets += [
        Target("default run: longest wall time, s", max(seeds["wall"]), MAX_WALL_S, at_least=False),
        Target("default run: lowest mean return of 100 test episodes", min(returns), SOLVED, at_least=True),
    ]
    found.details["seeds"] = details
