"""Plans the placement of a run: predicts time, memory and traffic of all placements, and ranks them.

profile (measured or read) -> placements -> rules of the configuration -> forecast of each -> `PlanResult`
"""

from __future__ import annotations

import io
import itertools
import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Dict, List, Literal, Optional, Sequence, Type, Union

import pydantic
from typing_extensions import Annotated

from mxtrain.amp.spec import FULL
from mxtrain.config.rules import check_batch_divisions, check_precision
from mxtrain.data.loading.dataset_files import file_error
from mxtrain.errors import ConfigError
from mxtrain.files.durable import encode_json, replace_file
from mxtrain.kvstore.spec import has_horovod
from mxtrain.parallel.exchange import Link
from mxtrain.parallel.forecast import Forecast, Forecaster, best_by_workers, best_of, knee_of
from mxtrain.parallel.placement import Placement, enumerate_placements, powers_to, replaces_placement
from mxtrain.parallel.placement_profile import PlacementProfile, read_profile
from mxtrain.parallel.spec import Data, Hybrid, ModelParallel, Parallel, Pipeline, Single
from mxtrain.terminal.progress import SILENT, WorkProgress
from mxtrain.terminal.tables import rows_text
from mxtrain.types import NonNegativeFloat, PathText, Positive, PositiveFloat, Spec
from mxtrain.workflows.output_file import OutputFile, open_output_file
from mxtrain.workflows.result_table import ResultTable

if TYPE_CHECKING:
    from mxtrain.config.groups import Description

PRECISIONS = ("off", "bfloat16", "float16")
"""Options of `amp`."""
RECOMPUTES = ("off", "auto")
"""Values of `parallel.recompute` that are compared."""
COMPRESSIONS = ("none", "fp16")
"""Options of `kvstore.compression` that are compared. Options with a threshold or ratio are not compared."""
SHOWN = 12
"""Number of placements in the printed table."""


class PlanSettings(Spec):
    """Settings of `plan`, besides overrides."""

    devices: Union[Literal["auto"], Positive] = "auto"
    """Largest number of devices of a worker; auto: the GPUs that a run would take, or one device for each usable core,
    at most 8."""
    over: List[Literal["precision", "recompute"]] = []
    """Further choices to compare: `precision`: float32, bfloat16 and float16; `recompute`: with and without activation
    recomputation. Each option is measured anew."""
    workers: Annotated[int, pydantic.Field(ge=1, le=64)] = 1
    """Largest number of workers (processes), each with a share of the same batch; at most 64."""
    bandwidth: Optional[PositiveFloat] = None
    """Gbit/s of the link of each worker's machine, which is like this one; None: all workers are on this machine."""
    latency: NonNegativeFloat = 0.1
    """Milliseconds of a message over such a link, one way."""
    shared: bool = False
    """With `bandwidth`: the workers share the cores of this machine all the same, as in network namespaces."""
    seconds: PositiveFloat = 0.5
    """Time for each measurement; longer measurements are more exact."""
    profile: Optional[PathText] = None
    """Profile to read instead of measuring, written by `out`, of this machine or another one."""
    out: Optional[OutputFile] = None
    """File for the measured profile (JSON)."""
    fresh: bool = False
    """Measure again, even if this configuration was measured before."""
    figure: Optional[OutputFile] = None
    """PNG file for a figure of samples/s by the number of workers."""

    @property
    def link(self) -> Link:
        """Returns the link of each worker's machine."""
        if self.bandwidth is None:
            return Link()
        return Link(self.bandwidth * 1e9 / 8, self.latency / 1000)


@dataclass(frozen=True)
class PlanResult(ResultTable):
    """Placements of a configuration, sorted by time. Placements that cannot be trained come last, with the reason.

    Attributes:
        profile: the measurements.
        forecasts: prediction of each placement.
        words: overrides of the configuration without a placement.
        kind: kind of devices that overrides name, "cpu" or "gpu"; empty if a run takes those of the profile anyway.
    """

    profile: PlacementProfile
    forecasts: Sequence[Forecast]
    words: Sequence[str]
    kind: str = ""

    @property
    def curve(self) -> List[Forecast]:
        """The best placement of each number of workers, fewest first."""
        return best_by_workers(self.forecasts)

    @property
    def advice(self) -> str:
        """A sentence on how many workers are worth their price; empty if only one was planned."""
        curve = self.curve
        if len(curve) < 2:
            return ""
        knee, last, first = knee_of(curve), curve[-1], curve[0]
        gain = knee.samples_per_s / first.samples_per_s
        number = knee.placement.workers
        text = f"rent {number} worker{'s' * (number > 1)}: {gain:.1f} times the samples/s of one"
        if number > 1:
            text += f" ({gain / number:.0%} of ideal)"
        if knee is last:
            return f"{text}; more were not planned"
        following = curve[curve.index(knee) + 1]
        return (
            f"{text}; {following.placement.workers} give {following.samples_per_s / first.samples_per_s:.1f} times "
            f"({following.bound} bounds them)"
        )

    def draw(self, path: Path) -> None:
        """Writes a figure of samples/s by the number of workers as PNG.

        Raises:
            DataError: the file cannot be written.
        """
        content = draw_scaling(self.curve)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(path, content)
        except OSError as error:
            raise file_error(path, error, "written") from error

    @property
    def best(self) -> Optional[Forecast]:
        """The fastest placement that fits; None if there is none."""
        return best_of(self.forecasts)

    def overrides(self, forecast: Forecast) -> List[str]:
        """Returns the overrides of a run with this placement."""
        return [*self.words, *forecast.placement.overrides(self.kind)]

    def rows(self) -> List[Dict[str, Any]]:
        """Returns a dict for each placement: axes, predicted seconds, samples/s, bytes, bound, overrides and reason."""
        rows = []
        for one in self.forecasts:
            place = one.placement
            fits = not one.reason
            rows.append(
                {
                    "workers": place.workers,
                    "replicas": place.replicas,
                    "stages": place.stages,
                    "microbatches": place.microbatches,
                    "accumulation": place.accumulation,
                    "store": place.store,
                    "compression": place.compression,
                    "precision": place.precision,
                    "recompute": place.recompute,
                    "step_s": one.step_s if fits else None,
                    "samples_per_s": one.samples_per_s if fits else None,
                    "process_bytes": one.process_bytes if one.process_bytes else None,
                    "device_bytes": one.device_bytes if one.device_bytes else None,
                    "device_traffic_bytes": one.device_traffic if fits else None,
                    "traffic_bytes": one.traffic if fits else None,
                    "bound": one.bound if fits else None,
                    "reason": one.reason,
                    "overrides": one.placement.overrides(self.kind),
                }
            )
        return rows

    def to_json(self) -> Dict[str, Any]:
        """Returns the result as JSON values."""
        return {
            "processor": self.profile.processor,
            "cores": self.profile.cores,
            "batch_size": self.profile.batch_size,
            "overrides": list(self.words),
            "advice": self.advice,
            "best": None if self.best is None else self.overrides(self.best),
            "placements": self.rows(),
        }

    def table(self, shown: Optional[int] = SHOWN) -> str:
        """Returns the table of the fastest placements as text.

        Args:
            shown: number of rows; None: all.
        """
        titles = ["placement", "step", "samples/s", "memory", "device", "traffic", "bound"]
        fitting = [one for one in self.forecasts if not one.reason]
        lines = []
        for one in fitting[:shown]:
            memory = _mebibytes(one.process_bytes) if one.process_bytes else ""
            traffic = _mebibytes(one.device_traffic + one.traffic)
            overrides = " ".join(one.placement.overrides(self.kind))
            time, speed = f"{1000 * one.step_s:,.1f} ms", f"{one.samples_per_s:,.0f}"
            lines.append([overrides, time, speed, memory, _mebibytes(one.device_bytes), traffic, one.bound])
        return rows_text(titles, lines)

    def __str__(self) -> str:
        return self.table()


def draw_scaling(curve: Sequence[Forecast]) -> bytes:
    """Returns a PNG of samples/s by the number of workers, beside those of ideal scaling."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.2), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)  # not pyplot, which has global state and chooses a backend by the display
    axes = figure.add_subplot()
    numbers = [one.placement.workers for one in curve]
    axes.plot(numbers, [one.samples_per_s for one in curve], marker="o", label="predicted")
    axes.plot(numbers, [curve[0].samples_per_s * number for number in numbers], color="0.75", label="ideal")
    axes.set(xscale="log", yscale="log", xlabel="workers", ylabel="samples/s")
    axes.set_xticks(numbers, [str(number) for number in numbers])
    axes.minorticks_off()
    axes.axvline(knee_of(curve).placement.workers, color="0.75", linestyle=":")
    axes.legend(frameon=False)
    content = io.BytesIO()
    figure.savefig(content, format="png")
    return content.getvalue()


def _mebibytes(size: float) -> str:
    return f"{size / 2**20:,.1f} MiB"


def plan_placements(
    description: Description,
    words: Sequence[str],
    config_dirs: Sequence[str],
    settings: PlanSettings,
    progress: WorkProgress = SILENT,
) -> PlanResult:
    """Measures a configuration, or takes measurements of it, and predicts its placements. Trains nothing.

    Args:
        description: description of the run; its placement is not used.
        words: overrides from which it was composed; processes that measure compose it from them.
        config_dirs: the user's own folders of configuration.
        settings: settings of the command.
        progress: shows the measurements.

    Raises:
        ConfigError: the run cannot be trained in one process on one device.
        DataError: a profile cannot be read, or does not belong to this configuration; the data cannot be read.
    """
    from mxtrain.cluster.launch.placement_probes import Probing, hash_of, keep, read_kept

    description.trainer.require_one_run("plan")
    variants = variants_of(words, description, settings.over)
    words = [word for word in words if not replaces_placement(word) and not word.startswith("amp=")]
    num_devices = None if settings.devices == "auto" else settings.devices
    stores = stores_of(description) if settings.workers > 1 else []
    kind = description.parallel.devices.partition(":")[0].replace("auto", "")
    measured = [kind, *(word for variant in variants for word in variant.variant), *stores]
    configuration = hash_of(description)
    if settings.profile is not None:
        profile = read_profile(Path(settings.profile))
        _require_same(profile, configuration, settings.profile)
    else:
        kept = None if settings.fresh else read_kept(configuration, num_devices, measured)
        profile = kept or Probing(words, config_dirs, settings.seconds, progress, kind).measure(
            configuration, num_devices, variants, stores
        )
        if kept is None:
            keep(profile, num_devices, measured)
    if settings.out is not None:
        with open_output_file(settings.out) as file:
            file.write(encode_json(profile.to_json(), indent=1).decode() + "\n")
    forecasts = forecast_all(description, profile, settings, variants, stores)
    found = PlanResult(profile, forecasts, words, "gpu" if profile.kind == "gpu" else kind)
    if settings.figure is not None:
        found.draw(Path(settings.figure))
    return found


def stores_of(description: Description) -> List[str]:
    """Returns the options of `kvstore` for several workers: that of the configuration, or all that are installed."""
    if description.kvstore.distributed:
        return [description.kvstore.setting.partition("=")[2]]
    return ["dist_sync", *(["horovod"] if has_horovod() else [])]


def variants_of(words: Sequence[str], description: Description, over: Sequence[str] = ()) -> List[Placement]:
    """Returns placements of one device: that with the precision and recomputation of a configuration first, then those
    with the others that are compared.

    Args:
        words: overrides of the configuration.
        description: its description.
        over: `PlanSettings.over`.
    """
    own = Placement(precision=precision_of(words, description), recompute=str(description.parallel.recompute))
    precisions = [own.precision, *(PRECISIONS if "precision" in over else ())]
    recomputes = [own.recompute, *(RECOMPUTES if "recompute" in over else ())]
    pairs = dict.fromkeys(itertools.product(precisions, recomputes))
    return [Placement(precision=precision, recompute=recompute) for precision, recompute in pairs]


def precision_of(words: Sequence[str], description: Description) -> str:
    """Returns the option of `amp` of a configuration."""
    named = [word.partition("=")[2] for word in words if word.startswith("amp=")]
    if named:
        return named[-1]
    return "off" if description.amp.dtype == FULL.dtype else description.amp.dtype


def forecast_all(
    description: Description,
    profile: PlacementProfile,
    settings: PlanSettings,
    variants: Sequence[Placement],
    stores: Sequence[str],
) -> List[Forecast]:
    """Predicts all placements and sorts them by time. Placements that cannot be trained come last."""
    num_devices = profile.num_devices if settings.devices == "auto" else settings.devices
    forecaster = Forecaster(
        profile,
        link=settings.link,
        shared=settings.shared or settings.bandwidth is None,
        bucket_bytes=dict.fromkeys(stores, description.kvstore.bucket_bytes) if description.kvstore.distributed else {},
    )
    numbers = powers_to(settings.workers)
    forecasts = []
    for placement in enumerate_placements(num_devices, numbers, stores, COMPRESSIONS, variants):
        reason = rule_against(placement, description, profile)
        forecasts.append(Forecast(placement, reason=reason) if reason else forecaster.predict(placement))
    return sorted(forecasts, key=lambda one: (bool(one.reason), one.step_s))


def rule_against(placement: Placement, description: Description, profile: PlacementProfile) -> str:
    """Returns why the rules of the configuration refuse a placement; empty if they do not."""
    dataset = description.dataset
    if dataset.batch_unit[0] == "batch_size":
        dataset = dataset.model_copy(update={"batch_size": profile.batch_size})
    changed = replace(
        description,
        dataset=dataset,
        parallel=parallel_of(placement, description.parallel),
        trainer=description.trainer.model_copy(update={"grad_accumulation": placement.accumulation}),
        cluster=description.cluster.model_copy(update={"workers": placement.workers}),
    )
    for rule in (check_batch_divisions, check_precision):
        try:
            rule(changed)
        except ConfigError as error:
            return str(error)
    return ""


def parallel_of(placement: Placement, composed: Parallel) -> Parallel:
    """Returns the settings of `parallel` for a placement; batch norms stay as they are."""
    options: Dict[str, Type[Parallel]] = {
        "single": Single,
        "data": Data,
        "model": ModelParallel,
        "pipeline": Pipeline,
        "hybrid": Hybrid,
    }
    kind = options[placement.option]
    values = {name: getattr(placement, name) for name in ("replicas", "stages", "microbatches")}
    return kind(
        batch_norm=composed.batch_norm, **{name: value for name, value in values.items() if name in kind.model_fields}
    )


def _require_same(profile: PlacementProfile, configuration: str, path: str) -> None:
    if profile.configuration != configuration:
        raise ConfigError(
            f"plan: profile={path} is of another configuration, or of another version of mxtrain: it was measured with "
            f"the overrides {shlex.join(profile.words) or '(none)'}. Type these, or leave profile out to measure again."
        )
