"""Measurements of a configuration on one machine, which `mxtrain plan` writes and reads as plain JSON."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Dict, List, Optional, Sequence, Tuple

from mxtrain.errors import DataError
from mxtrain.files.json_form import NUMBER, require_form
from mxtrain.files.json_text import JsonTextError, read_json
from mxtrain.parallel.placement import Placement

if TYPE_CHECKING:
    from mxtrain.types.annotations import Json, JsonForm, JsonObject

FORMAT = 3
_PLACEMENT: Dict[str, JsonForm] = {
    "replicas": int,
    "stages": int,
    "microbatches": int,
    "accumulation": int,
    "workers": int,
    "store": str,
    "precision": str,
    "recompute": str,
}
_PROBE: JsonForm = {
    "placement": _PLACEMENT,
    "threads": int,
    "refused?": str,
    "batch_size?": int,
    "base_bytes?": NUMBER,
    "passes?": [{"samples": int, "seconds": NUMBER}],
    "step_s?": NUMBER,
    "passes_s?": NUMBER,
    "step_peak_bytes?": NUMBER,
    "compute_s?": [NUMBER],
    "parameter_bytes?": NUMBER,
    "stages?": [
        {
            "forward": NUMBER,
            "backward": NUMBER,
            "parameter_bytes": NUMBER,
            "activation_bytes": NUMBER,
            "sample_bytes": NUMBER,
        }
    ],
}
_FORM: JsonForm = {
    "format": int,
    "configuration": str,
    "words": [str],
    "batch_size": int,
    "steps_per_epoch": int,
    "kind": str,
    "cores": int,
    "memory_bytes": NUMBER,
    "processor": str,
    "probes": [_PROBE],
}


@dataclass(frozen=True)
class Probe:
    """Measurements of one placement.

    Attributes:
        placement: the placement.
        threads: OpenMP threads of each device; 0 if not set.
        refused: why it cannot be trained; then nothing else is known.
        base_bytes: memory of the process after its first update.
        batch_size: samples of a measured step.
        passes: (samples, seconds) of forward and backward passes of one device, rising.
        step_s, passes_s: seconds of a step, and of its forward and backward passes alone.
        step_peak_bytes: peak memory of steps.
        compute_s: seconds of a step in which each device computes.
        parameter_bytes: of the trained parameters, float32.
        stages: estimated costs of a microbatch in each stage, and the bytes of a sample that it receives.
    """

    placement: Placement
    threads: int
    refused: str = ""
    base_bytes: float = 0.0
    batch_size: int = 0
    passes: Tuple[Tuple[int, float], ...] = ()
    step_s: float = 0.0
    passes_s: float = 0.0
    step_peak_bytes: float = 0.0
    compute_s: Tuple[float, ...] = ()
    parameter_bytes: float = 0.0
    stages: Tuple[Dict[str, float], ...] = ()


@dataclass(frozen=True)
class PlacementProfile:
    """Everything that is measured of a configuration.

    Attributes:
        configuration: hash of the configuration without its placement.
        words: overrides of the configuration without its placement.
        batch_size: samples of a global batch.
        steps_per_epoch: number of steps of an epoch.
        kind: "cpu" or "gpu".
        cores: cores that the process may use.
        memory_bytes: memory that it may use.
        processor: name of the processor.
        probes: measurements.
    """

    configuration: str
    words: Sequence[str]
    batch_size: int
    steps_per_epoch: int
    kind: str
    cores: int
    memory_bytes: float
    processor: str
    probes: Sequence[Probe]

    def threads_of(self, num_devices: int) -> int:
        """Returns the threads of each device if so many compute on this machine; as `runtime.threads=auto` sets it."""
        return max(1, self.cores // num_devices)

    @property
    def num_devices(self) -> int:
        """Returns the largest number of devices of a measured placement."""
        return max((probe.placement.num_devices for probe in self.probes), default=1)

    def find(
        self, like: Placement, replicas: int = 1, stages: int = 1, microbatches: int = 1, accumulation: int = 1
    ) -> Optional[Probe]:
        """Returns the probe of one worker with these axes; None if it was not measured.

        Args:
            like: a placement with the precision and recomputation.
            replicas, stages, microbatches, accumulation: axes.
        """
        wanted = Placement(
            replicas, stages, microbatches, accumulation, precision=like.precision, recompute=like.recompute
        )
        return next((probe for probe in self.probes if probe.placement == wanted), None)

    def find_exchange(self, like: Placement) -> Optional[Probe]:
        """Returns the probe of several workers with the store of a placement; None if there is none."""
        wanted = [
            p for p in self.probes if p.placement.workers > 1 and p.placement.store == like.store and not p.refused
        ]
        return next((p for p in wanted if p.placement.variant == like.variant), wanted[0] if wanted else None)

    def to_json(self) -> Dict[str, Json]:
        """Returns the profile as JSON values."""
        return {
            "format": FORMAT,
            "configuration": self.configuration,
            "words": list(self.words),
            "batch_size": self.batch_size,
            "steps_per_epoch": self.steps_per_epoch,
            "kind": self.kind,
            "cores": self.cores,
            "memory_bytes": self.memory_bytes,
            "processor": self.processor,
            "probes": [_probe_json(probe) for probe in self.probes],
        }


def _probe_json(probe: Probe) -> Dict[str, Json]:
    place = probe.placement
    values: Dict[str, Json] = {
        "placement": {name: getattr(place, name) for name in _PLACEMENT},
        "threads": probe.threads,
    }
    if probe.refused:
        return {**values, "refused": probe.refused}
    return {
        **values,
        "base_bytes": probe.base_bytes,
        "batch_size": probe.batch_size,
        "passes": [{"samples": n, "seconds": s} for n, s in probe.passes],
        **{name: getattr(probe, name) for name in ("step_s", "passes_s", "step_peak_bytes")},
        "compute_s": list(probe.compute_s),
        "parameter_bytes": probe.parameter_bytes,
        "stages": [dict(stage) for stage in probe.stages],
    }


def probe_of(placement: Placement, threads: int, measured: JsonObject) -> Probe:
    """Returns the probe of a placement from the values of `mxtrain.training.placement_probe`."""
    passes = tuple((one["samples"], one["seconds"]) for one in measured.get("passes", ()))
    return Probe(
        placement,
        threads,
        refused=str(measured.get("refused", "")),
        base_bytes=measured.get("base_bytes", 0.0),
        batch_size=measured.get("batch_size", 0),
        passes=passes,
        step_s=measured.get("step_s", 0.0),
        passes_s=measured.get("passes_s", 0.0),
        step_peak_bytes=measured.get("step_peak_bytes", 0.0),
        compute_s=tuple(measured.get("compute_s", ())),
        parameter_bytes=measured.get("parameter_bytes", 0.0),
        stages=tuple(measured.get("stages", ())),
    )


def read_profile(path: Path) -> PlacementProfile:
    """Reads a profile.

    Raises:
        DataError: the file is missing, or is no profile of this version.
    """
    try:
        return parse_profile(read_json(path))
    except OSError as error:
        raise DataError(f"{path}: the profile cannot be read: {error.strerror or error}.") from None
    except JsonTextError as error:
        raise DataError(f"{path} {error}. `mxtrain plan out=FILE` writes profiles.") from None
    except ValueError as error:
        raise DataError(f"{path} is no profile of `mxtrain plan`: {error}.") from None


def parse_profile(content: Json) -> PlacementProfile:
    """Returns the profile of JSON values.

    Raises:
        ValueError: they are no profile, or numbers are not possible.
    """
    require_form(content, _FORM)
    assert isinstance(content, dict)
    if content["format"] != FORMAT:
        raise ValueError(f"its format is {content['format']}, and this version reads {FORMAT}")
    for name in ("batch_size", "steps_per_epoch", "cores", "memory_bytes"):
        if content[name] <= 0:
            raise ValueError(f"'{name}' is {content[name]}, and must be above 0")
    probes = []
    for number, measured in enumerate(content["probes"]):
        placement = Placement(**measured["placement"])
        probe = probe_of(placement, measured["threads"], measured)
        _require_possible(probe, f"probes[{number}]")
        probes.append(probe)
    return PlacementProfile(
        content["configuration"],
        content["words"],
        content["batch_size"],
        content["steps_per_epoch"],
        content["kind"],
        content["cores"],
        content["memory_bytes"],
        content["processor"],
        probes,
    )


def _require_possible(probe: Probe, path: str) -> None:
    """Raises a ValueError if an axis or a measurement that was taken is not above 0, or if sizes do not rise or are
    missing on one device."""
    place = probe.placement
    if min(place.replicas, place.stages, place.microbatches, place.accumulation, place.workers) < 1:
        raise ValueError(f"'{path}.placement' has a number below 1")
    if probe.refused:
        return
    if probe.placement.workers == 1 and min(probe.step_s, probe.passes_s) <= 0:
        raise ValueError(f"'{path}' has a step of 0 seconds")
    if place.workers == place.num_devices == 1 and not probe.passes:
        raise ValueError(f"'{path}.passes' must not be empty")
    sizes: List[int] = [size for size, *_ in probe.passes]
    if sizes != sorted(set(sizes)) or any(min(values) <= 0 for values in probe.passes):
        raise ValueError(f"'{path}.passes' must have rising numbers of samples, and values above 0")
