"""Measures the placements that `mxtrain plan` needs: each in a process of its own, because MXNet reads the number of
threads only when it is imported.

    python -m mxtrain.cluster.launch.placement_probes REQUEST.json RESULT.json
"""

from __future__ import annotations

import hashlib
import json
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Dict, List, Mapping, Optional, Sequence, Tuple

from mxtrain.cluster.launch.new_process import train_measured
from mxtrain.cluster.process import run_silently
from mxtrain.cluster.reported_cause import ReportedCause, report_cause
from mxtrain.config.override_text import config_flags
from mxtrain.config.search_path import module_command
from mxtrain.errors import (
    EXIT_BAD_INPUT,
    EXIT_BUDGET,
    EXIT_CRASHED,
    EXIT_FINISHED,
    ConfigError,
    MxtrainError,
    describe_unexpected,
)
from mxtrain.files.cache import read_cached, write_cached
from mxtrain.files.durable import encode_json
from mxtrain.files.json_text import read_json
from mxtrain.files.temporary import temporary_root
from mxtrain.parallel.forecast import PROBED_MICROBATCHES, PROBED_PARTS
from mxtrain.parallel.placement import Placement, powers_to
from mxtrain.parallel.placement_profile import PlacementProfile, parse_profile, probe_of
from mxtrain.runtime.cores import processor_name, usable_cores
from mxtrain.runtime.memory import usable_memory

if TYPE_CHECKING:
    from mxtrain.config.groups import Description
    from mxtrain.parallel.placement_profile import Probe
    from mxtrain.terminal.progress import WorkProgress
    from mxtrain.types.annotations import JsonObject

CACHE = "plans"
MOST_DEVICES = 8
"""Largest number of devices that `devices=auto` compares."""
PROBED_STEPS, PROBED_WARM_UP = 60, 10
PROBED_RUN = (
    "trainer.max_epochs=100",
    "trainer.val_interval=100",
    "trainer.val_interval_unit=epochs",
    "trainer.log_interval=5",
)
"""Settings of the run of two workers."""
NUM_SIZES = 7
"""Number of sizes of a batch, each half of the one before, whose passes are measured on one device, also in parts."""


class Probing:
    """Measures placements of one configuration.

    Args:
        words: overrides of the configuration without a placement.
        config_dirs: the user's own folders of configuration.
        seconds: time of each measurement.
        progress: shows the placements.
        kind: kind of the devices, "cpu" or "gpu"; empty: GPUs if there are some.
    """

    def __init__(
        self, words: Sequence[str], config_dirs: Sequence[str], seconds: float, progress: WorkProgress, kind: str = ""
    ):
        self._words, self._config_dirs = list(words), list(config_dirs)
        self._seconds, self._progress, self._kind = seconds, progress, kind

    def measure(
        self,
        configuration: str,
        num_devices: Optional[int],
        variants: Sequence[Placement],
        stores: Sequence[str] = (),
    ) -> PlacementProfile:
        """Measures one device with all threads and with fewer, a batch whole and in two parts, and 2, 4, ...
        replicas and stages.

        Args:
            configuration: hash of the configuration, see `hash_of`.
            num_devices: largest number of devices of a placement; None: the GPUs that a run would take, or one for each
                usable core, at most `MOST_DEVICES`.
            variants: placements of one device with each precision and recomputation.
            stores: options of `kvstore`, for each of which two workers are measured.
        """
        cores = usable_cores()
        with self._progress:
            self._progress.begin("measuring one device", 1)
            first = self._measure_one(variants[0], cores, None)
            if num_devices is None:
                num_devices = min(first.get("num_gpus") or cores, MOST_DEVICES)
            pairs = [replace(variants[0], workers=2, store=store) for store in stores]
            wanted = [one for variant in variants for one in _wanted(variant, num_devices, cores, first["kind"])]
            self._progress.begin("measuring placements", len(wanted) - 1 + len(pairs))
            probes = [probe_of(*wanted[0], first)]
            for placement, threads in wanted[1:]:
                probes.append(probe_of(placement, threads, self._measure_one(placement, threads, first)))
                self._progress.advance(1)
            for pair in pairs:
                probes.append(self._measure_workers(pair, max(1, cores // 2), first))
                self._progress.advance(1)
        return PlacementProfile(
            configuration,
            self._words,
            first["batch_size"],
            first["steps_per_epoch"],
            first["kind"],
            cores,
            usable_memory(),
            processor_name(),
            probes,
        )

    def _measure_one(self, placement: Placement, threads: int, first: Optional[Mapping[str, object]]) -> JsonObject:
        """Returns the measurements of a placement of one worker, or why it is refused.

        Args:
            placement: the placement.
            threads: OpenMP threads of each device.
            first: measurements of the first placement, one device; None if this is the first.

        Raises:
            ConfigError: the first placement is refused.
            MxtrainError: the process failed.
        """
        words = [*self._words, *placement.overrides(self._kind), f"runtime.threads={threads}"]
        num_sizes = NUM_SIZES if placement.num_devices == 1 else 0
        request = {"words": words, "config_dirs": self._config_dirs, "num_sizes": num_sizes, "seconds": self._seconds}
        with (
            tempfile.TemporaryDirectory(prefix="mxtrain-plan-", dir=temporary_root()) as folder,
            ReportedCause() as reported,
        ):
            asked, result = Path(folder) / "request.json", Path(folder) / "result.json"
            asked.write_bytes(encode_json(request))
            code = run_silently([*module_command(__name__), str(asked), str(result)], reported.environment)
            measured = read_json(result) if result.is_file() else None
        if code == EXIT_FINISHED and measured is not None:
            return measured
        # Without one device nothing can be trained. Other placements are then listed as refused.
        if code == EXIT_BAD_INPUT and first is not None:
            return {"refused": reported.cause}
        if code == EXIT_BAD_INPUT:
            raise ConfigError(reported.cause)
        raise MxtrainError(
            f"plan: the process that measured {' '.join(placement.overrides())} ended with exit code {code}: "
            f"{reported.cause or 'without a cause'}"
        )

    def _measure_workers(self, pair: Placement, threads: int, first: JsonObject) -> Probe:
        """Returns the time of a step of workers on this machine, which a run of `train` takes."""
        placed = pair.overrides("gpu" if first["kind"] == "gpu" else self._kind)
        settings = [*PROBED_RUN, f"trainer.max_steps={PROBED_STEPS}"]
        code, cause, rows = train_measured(config_flags(self._config_dirs), self._words, [*placed, *settings])
        speeds = [row["samples_per_s"] for row in rows if row["step"] > PROBED_WARM_UP]
        if code not in (EXIT_FINISHED, EXIT_BUDGET) or not speeds:
            return probe_of(pair, threads, {"refused": cause or f"two workers ended with exit code {code}"})
        step_s = mean(first["batch_size"] / speed for speed in speeds)
        return probe_of(pair, threads, {"step_s": step_s, "batch_size": first["batch_size"]})


def _wanted(variant: Placement, num_devices: int, cores: int, kind: str) -> List[Tuple[Placement, int]]:
    """Returns the placements of a precision and recomputation that are measured, each with the threads of a device."""
    counts = {max(1, cores // number) for number in range(1, num_devices + 1)} if kind == "cpu" else {cores}
    on_one = [variant, replace(variant, accumulation=PROBED_PARTS)]
    wanted = [(place, threads) for place in on_one for threads in sorted(counts | {cores}, reverse=True)]
    for count in powers_to(num_devices)[1:]:
        others = [replace(variant, replicas=count)]
        others += [replace(variant, stages=count, microbatches=m) for m in PROBED_MICROBATCHES]
        wanted += [(one, max(1, cores // count)) for one in others]
    return wanted


def hash_of(description: Description) -> str:
    """Returns a hash of a configuration without its placement, its length and its outputs. It is the same on every
    machine."""
    from mxtrain import __version__

    left_out = ("parallel", "kvstore", "cluster", "amp", "trainer", "logger", "callback", "checkpoint")
    config: Dict[str, object] = {key: value for key, value in description.config.items() if key not in left_out}
    trainer = description.trainer
    kept = ("seed", "ema_decay", "clip_global_norm", "sparse_grad")
    config["trainer"] = {name: getattr(trainer, name) for name in kept}
    config["batch_norm"] = description.parallel.batch_norm
    text = json.dumps([__version__, config], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def read_kept(configuration: str, num_devices: Optional[int], options: Sequence[str]) -> Optional[PlacementProfile]:
    """Returns a profile of this machine from the user's cache; None if there is none."""
    content = read_cached(CACHE, _name(configuration, num_devices, options))
    try:
        return None if content is None else parse_profile(json.loads(content))
    except ValueError:  # of an earlier version
        return None


def keep(profile: PlacementProfile, num_devices: Optional[int], options: Sequence[str]) -> None:
    """Writes a profile into the user's cache."""
    name = _name(profile.configuration, num_devices, options)
    write_cached(CACHE, name, json.dumps(profile.to_json()).encode())


def _name(configuration: str, num_devices: Optional[int], options: Sequence[str]) -> str:
    machine = json.dumps([processor_name(), usable_cores(), configuration, num_devices, list(options)])
    return hashlib.sha256(machine.encode()).hexdigest()


def main(arguments: Sequence[str]) -> int:
    """Measures what a request asks for, and writes the result; returns the exit code."""
    from mxtrain.composing.composer import Composer
    from mxtrain.composing.environment import compose_and_check, prepare_environment

    request = read_json(arguments[0])
    try:
        with Composer(request["config_dirs"]) as composer:
            _, description = compose_and_check(composer, request["words"])
        prepare_environment(description)
        from mxtrain.training.placement_probe import probe_placement  # imports MXNet: only from here on

        measured = probe_placement(description, request["num_sizes"], request["seconds"])
    except MxtrainError as error:
        report_cause(str(error))
        return error.exit_code
    except Exception as error:
        report_cause(describe_unexpected(error))
        return EXIT_CRASHED
    Path(arguments[1]).write_bytes(encode_json(measured))
    return EXIT_FINISHED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
