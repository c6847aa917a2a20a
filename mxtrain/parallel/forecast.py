"""Predicts time and memory of a placement from the measurements of a few others. No MXNet here.

    seconds of a microbatch (measured by number of samples and threads) -> share of each stage -> simulated schedule on
    devices that share the cores -> + update and exchange (measured)

What a model leaves out of a kind of placement (copies between devices, overhead of a pass) is the difference between
its prediction and one measured placement of that kind; for stages, their ratio.

Similar to dPRO, which replays timelines of operators: Hu et al., https://arxiv.org/abs/2205.02473.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Dict, List, Mapping, Optional, Sequence, Tuple

from mxtrain.parallel.exchange import BUCKET_BYTES, SIZE, Link, link_seconds, split_buckets, traffic
from mxtrain.parallel.placement import Placement
from mxtrain.parallel.placement_profile import PlacementProfile, Probe
from mxtrain.parallel.schedule import FORWARD, held, stage_order

PROBED_MICROBATCHES = (1, 2, 4)
"""Numbers of microbatches of the pipelines that are measured."""
PROBED_PARTS = 2
"""Number of parts of a batch on one device that are measured, besides one."""
EQUAL = 1.05
"""Factor below which two predicted times count as equal."""
WORTH = 0.5
"""Share of the first worker's samples/s that a further worker must add to be worth its price."""
NEARLY_FULL = 0.9
"""Share of the memory from which on memory is what bounds a placement."""


@dataclass(frozen=True)
class StagePass:
    """A pass of a microbatch through a stage.

    Attributes:
        device: number of its device; a device works on its tasks in the given order.
        seconds: duration if nothing else computes.
        needs: positions of the tasks that must have ended.
    """

    device: int
    seconds: float
    needs: Tuple[int, ...] = ()


@dataclass(frozen=True)
class Cores:
    """The cores that devices share.

    Attributes:
        count: number of cores; infinite for GPUs.
        threads: threads of each device.
        contention: time of a task beside another one on other cores / time alone, because they share memory and caches.
    """

    count: float
    threads: int = 1
    contention: float = 1.0

    def rate(self, num_active: int) -> float:
        """Returns the speed of each of some devices that compute at the same time; 1 is that of one alone."""
        beside = min(float(num_active), max(self.count / self.threads, 1.0)) - 1
        shared = min(1.0, self.count / (num_active * self.threads))
        return shared / (1 + (self.contention - 1) * min(beside, self.count))


def simulate(tasks: Sequence[StagePass], cores: Cores) -> Tuple[float, List[float]]:
    """Simulates tasks on devices that share cores equally.

    Returns:
        The time from the first begin to the last end, and the time in which each device has a task.

    >>> simulate([StagePass(0, 1.0), StagePass(1, 1.0)], Cores(1))
    (2.0, [2.0, 2.0])
    """
    num_devices = 1 + max(task.device for task in tasks)
    queues: List[List[int]] = [[] for _ in range(num_devices)]
    for position, task in enumerate(tasks):
        queues[task.device].append(position)
    ended = [False] * len(tasks)
    left = [task.seconds for task in tasks]
    busy, now, remaining = [0.0] * num_devices, 0.0, len(tasks)
    while remaining:
        active = [queue[0] for queue in queues if queue and all(ended[need] for need in tasks[queue[0]].needs)]
        assert active, "the tasks wait for each other"
        rate = cores.rate(len(active))
        step = min(left[position] for position in active) / rate
        now += step
        for position in active:
            busy[tasks[position].device] += step
            left[position] -= step * rate
            if left[position] <= 1e-12 * max(tasks[position].seconds, 1e-9):
                ended[position] = True
                queues[tasks[position].device].pop(0)
                remaining -= 1
    return now, busy


def pass_tasks(
    placement: Placement, forward_s: Sequence[float], backward_s: Sequence[float], schedule: str, copies: int = 1
) -> List[StagePass]:
    """Returns the passes of a step.

    Args:
        placement: replicas, stages, microbatches and parts.
        forward_s, backward_s: seconds of one microbatch in each stage.
        schedule: "gpipe" or "1f1b".
        copies: number of workers whose devices share the cores.
    """
    tasks: List[StagePass] = []
    stages, microbatches = placement.stages, placement.microbatches
    for copy in range(copies * placement.replicas):
        for _ in range(placement.accumulation):
            orders = [stage_order(schedule, stage, stages, microbatches) for stage in range(stages)]
            positions: Dict[Tuple[str, int, int], int] = {}
            for order in orders:
                for action in order:
                    positions[action.kind, action.stage, action.microbatch] = len(tasks) + len(positions)
            for stage, order in enumerate(orders):
                for action in order:
                    if action.kind == FORWARD:
                        needs = [(FORWARD, stage - 1, action.microbatch)] if stage else []
                    else:
                        needs = [(FORWARD, stage, action.microbatch)]
                        needs += [(action.kind, stage + 1, action.microbatch)] if stage + 1 < stages else []
                    seconds = (forward_s if action.kind == FORWARD else backward_s)[stage]
                    tasks.append(StagePass(copy * stages + stage, seconds, tuple(positions[need] for need in needs)))
    return tasks


@dataclass(frozen=True)
class Forecast:
    """Predicted cost of a placement.

    Attributes:
        placement: the placement.
        step_s: seconds of a step.
        samples_per_s: samples of all workers in a second.
        device_bytes: largest memory of a device for activations, parameters and gradients.
        process_bytes: peak memory of a worker's process; on GPUs 0.
        device_traffic, traffic: bytes of a step that go between the devices of a worker, and that a worker sends and
            receives.
        compute_s, bubble_s, exchange_s: seconds of a step in which devices compute, wait for other stages, and in which
            workers exchange.
        bound: what takes most of the step: "compute", "bubble" or "link"; "memory" if it is nearly full.
        reason: why it cannot be trained; empty if it can.
    """

    placement: Placement
    step_s: float = math.inf
    samples_per_s: float = 0.0
    device_bytes: float = 0.0
    process_bytes: float = 0.0
    device_traffic: float = 0.0
    traffic: float = 0.0
    compute_s: float = 0.0
    bubble_s: float = 0.0
    exchange_s: float = 0.0
    bound: str = "compute"
    reason: str = ""


class Forecaster:
    """Predicts placements from a profile.

    Args:
        profile: the measurements.
        schedule: order of passes of pipelines.
        link: link of each worker's machine.
        shared: True if all workers share the cores of this machine, also with a limited link.
        bucket_bytes: store -> size of a full message before compression, if it is not the default.
    """

    def __init__(
        self,
        profile: PlacementProfile,
        schedule: str = "1f1b",
        link: Optional[Link] = None,
        shared: bool = True,
        bucket_bytes: Optional[Mapping[str, int]] = None,
    ):
        self._profile, self._schedule = profile, schedule
        self._link, self._shared, self._bucket_bytes = link or Link(), shared, bucket_bytes or {}

    def unsupported_reason(self, placement: Placement) -> str:
        """Returns why the profile has no prediction for a placement; empty if it has."""
        axes = [(1, 1, 1, 1), (placement.replicas, 1, 1, 1)]
        if placement.stages > 1:
            axes += [(1, placement.stages, count, 1) for count in PROBED_MICROBATCHES]
        if placement.accumulation > 1:
            axes.append((1, 1, 1, PROBED_PARTS))
        for one in axes:
            probe = self._profile.find(placement, *one)
            if probe is None:
                names = ("replicas", "stages", "microbatches", "parts")
                numbers = ", ".join(f"{number} {name}" for number, name in zip(one, names))
                return (
                    f"the profile has no measurement of {numbers} with amp={placement.precision} and "
                    f"parallel.recompute={placement.recompute}"
                )
            if probe.refused:
                return probe.refused
        if placement.workers > 1 and self._profile.find_exchange(placement) is None:
            return f"the profile has no measurement of two workers with kvstore={placement.store}"
        return ""

    def _pipeline(self, placement: Placement, factor: int = 1) -> Probe:
        """Returns the measured pipeline with the stages of a placement, and as many microbatches or the next fewer.

        Args:
            placement: the placement.
            factor: factor of its number of microbatches.
        """
        count = max(one for one in PROBED_MICROBATCHES if one <= placement.microbatches * factor)
        return self._find(placement, 1, placement.stages, count)

    def _pipeline_of_size(self, placement: Placement) -> Probe:
        """Returns the measured pipeline with microbatches of as many samples as those of a placement, or the next
        more."""
        return self._pipeline(placement, placement.accumulation * placement.replicas * placement.workers)

    def predict(self, placement: Placement) -> Forecast:
        """Predicts a placement; one that cannot be trained or predicted has a reason."""
        reason = self.unsupported_reason(placement)
        if reason:
            return Forecast(placement, reason=reason)
        copies = placement.workers if self._shared else 1
        makespan, busy = self._passes(placement, copies)
        step_s = self._step_time(placement, makespan)
        # The update of each worker is work of about one core.
        step_s = makespan + (step_s - makespan) * max(1.0, copies / self._profile.cores)
        exchange_s, handled = self._exchange(placement)
        step_s += exchange_s
        single = self._find(placement)
        batch_size = single.batch_size or self._profile.batch_size
        device_bytes, process_bytes = self.memory(placement)
        compute_s = max(busy) if busy else makespan
        bubble_s = makespan - sum(busy) / len(busy)
        available = self._profile.memory_bytes
        used = process_bytes if self._profile.kind == "cpu" else device_bytes
        bound = max((compute_s, "compute"), (2 * bubble_s, "bubble"), (2 * exchange_s, "link"))[1]
        reason = ""
        if used > available:
            reason = f"it needs {used / 2**20:,.0f} MiB of memory, and there are {available / 2**20:,.0f} MiB"
        elif used > NEARLY_FULL * available:
            bound = "memory"
        return Forecast(
            placement,
            step_s,
            batch_size / step_s,
            device_bytes,
            process_bytes,
            self._device_traffic(placement),
            handled,
            compute_s=compute_s,
            bubble_s=bubble_s,
            exchange_s=exchange_s,
            bound=bound,
            reason=reason,
        )

    def _find(
        self, like: Placement, replicas: int = 1, stages: int = 1, microbatches: int = 1, accumulation: int = 1
    ) -> Probe:
        probe = self._profile.find(like, replicas, stages, microbatches, accumulation)
        assert probe is not None
        return probe

    # Time.

    def microbatch_s(self, like: Placement, num_samples: int, threads: int) -> float:
        """Returns the seconds of the forward and backward pass of some samples on a device with so many threads.

        Args:
            like: a placement with the precision and recomputation.
            num_samples: number of samples.
            threads: number of threads.
        """
        return _interpolate(self._passes_with(like, threads), num_samples)

    def part_s(self, like: Placement, num_samples: int, threads: int) -> float:
        """Returns the seconds of the passes of one of several parts of a batch, with the sum of its gradients and those
        of the parts before it. Arguments are those of `microbatch_s`."""
        points = self._passes_with(like, threads, PROBED_PARTS)
        return _interpolate([(size / PROBED_PARTS, seconds / PROBED_PARTS) for size, seconds in points], num_samples)

    def _passes_with(self, like: Placement, threads: int, parts: int = 1) -> List[Tuple[float, float]]:
        """Returns the measured numbers of samples and seconds of the passes of one device with the nearest number of
        threads."""
        wanted = Placement(accumulation=parts, precision=like.precision, recompute=like.recompute)
        probes = [p for p in self._profile.probes if p.placement == wanted and p.passes]
        probe = min(probes, key=lambda probe: abs(probe.threads - threads))
        points: List[Tuple[float, float]] = []
        # More samples never take less time, so a shorter time of more samples replaces one that was disturbed.
        for size, seconds in reversed(probe.passes):
            points.insert(0, (size, min(seconds, points[0][1]) if points else seconds))
        return points

    def cores(self, like: Placement, num_devices: int) -> Cores:
        """Returns the cores for so many devices on this machine."""
        if self._profile.kind != "cpu":
            return Cores(math.inf)
        return Cores(self._profile.cores, self._profile.threads_of(num_devices), self._contention(like))

    def _contention(self, like: Placement) -> float:
        """Returns the slow-down by one more device on other cores, from the measured placement of two replicas."""
        probe = self._profile.find(like, replicas=2)
        if probe is None or probe.refused or not probe.passes_s:
            return 1.0
        threads = self._profile.threads_of(2)
        alone = self.microbatch_s(like, -(-self._profile.batch_size // 2), threads)
        shared = max(1.0, 2 * threads / self._profile.cores)
        return max(1.0, probe.passes_s / (alone * shared))

    def _passes(self, placement: Placement, copies: int = 1) -> Tuple[float, List[float]]:
        """Simulates the passes of a step; returns their time, and that in which each device computes.

        Both are scaled for stages, so that the prediction for the measured pipeline with microbatches of as many
        samples, or the next more, is its measured step.

        Args:
            placement: placement of each worker.
            copies: number of workers on this machine.
        """
        makespan, busy = self._simulate(placement, copies)
        if placement.stages > 1:
            measured = self._pipeline_of_size(placement)
            factor = measured.step_s / self._simulate(measured.placement)[0]
            makespan, busy = factor * makespan, [factor * seconds for seconds in busy]
        return makespan, busy

    def _simulate(self, placement: Placement, copies: int = 1) -> Tuple[float, List[float]]:
        """Returns `_passes` without the scale."""
        num_devices = placement.num_devices * copies
        cores = self.cores(placement, num_devices)
        # Microbatches add their gradients anyway, also those that are measured.
        has_parts = placement.accumulation > 1 and placement.stages == 1
        seconds_of = self.part_s if has_parts else self.microbatch_s
        whole = seconds_of(placement, placement.microbatch_size(self._profile.batch_size), cores.threads)
        forward_s, backward_s = self._stage_times(placement, whole)
        return simulate(pass_tasks(placement, forward_s, backward_s, self._schedule_of(placement), copies), cores)

    def _schedule_of(self, placement: Placement) -> str:
        return self._schedule if placement.microbatches > 1 else "gpipe"

    def _stage_times(self, placement: Placement, whole: float) -> Tuple[List[float], List[float]]:
        """Returns forward and backward seconds of a microbatch in each stage, whose sum is `whole`.

        Shares of stages are those of the measured seconds of their devices; the division into forward and backward
        passes is estimated from their operators.
        """
        if placement.stages == 1:
            return [whole / 3], [2 * whole / 3]
        probe = self._pipeline_of_size(placement)
        total = sum(probe.compute_s)
        shares = [seconds / total for seconds in probe.compute_s]
        forwards = [stage["forward"] / (stage["forward"] + stage["backward"]) for stage in probe.stages]
        forward_s = [whole * share * part for share, part in zip(shares, forwards)]
        return forward_s, [whole * share - seconds for share, seconds in zip(shares, forward_s)]

    def _step_time(self, placement: Placement, passes_s: float) -> float:
        """Returns the seconds of a step whose passes take `passes_s`.

        The update, sums over replicas and the work of the host come to it: what the measured step of that kind took
        beyond its simulated passes. If it was shorter than these, because steps overlap, it is shorter by the same
        factor. Passes through stages hold all of this already.
        """
        if placement.stages > 1:
            return passes_s
        nearest = self._find(placement, placement.replicas)
        if placement.replicas == 1 and placement.accumulation > 1:
            nearest = self._find(placement, accumulation=PROBED_PARTS)
        rest_s = self._rest_s(nearest)
        if rest_s < 0:
            return passes_s * nearest.step_s / (nearest.step_s - rest_s)
        return passes_s + rest_s

    def _rest_s(self, probe: Probe) -> float:
        """Returns the seconds of a measured step beyond its simulated passes."""
        return probe.step_s - self._passes(probe.placement)[0]

    # Workers.

    def _exchange(self, placement: Placement) -> Tuple[float, float]:
        """Returns the seconds in which workers exchange gradients, and the bytes that each sends and receives.

        The links' time is simulated. That of the processors grows with the bytes that a machine handles, from what two
        workers took here; the longer one counts.
        """
        if placement.workers == 1:
            return 0.0, 0.0
        ratio = SIZE[placement.compression]
        size = self._find(placement).parameter_bytes * ratio
        own, busiest = traffic(placement.store, placement.workers, size)
        # Buckets are filled with gradients, which are compressed afterwards.
        messages = split_buckets(size, ratio * self._bucket_bytes.get(placement.store, BUCKET_BYTES))
        link_s = link_seconds(placement.store, placement.workers, messages, self._link)
        probe = self._profile.find_exchange(placement)
        assert probe is not None
        measured = _handled_together(placement.store, 2, self._find(placement).parameter_bytes)
        per_byte = self._probed_exchange_s(probe) / measured
        together = _handled_together(placement.store, placement.workers, size)
        return max(link_s, per_byte * (together if self._shared else busiest)), own

    def _probed_exchange_s(self, probe: Probe) -> float:
        """Returns the seconds of the exchange of two workers on this machine: what their step took beyond computing."""
        place = probe.placement
        alone = Placement(precision=place.precision, recompute=place.recompute, workers=place.workers)
        makespan, _ = self._passes(alone, place.workers)
        rest = (self._step_time(alone, makespan) - makespan) * max(1.0, place.workers / self._profile.cores)
        return max(probe.step_s - makespan - rest, 0.0)

    # Memory.

    def memory(self, placement: Placement) -> Tuple[float, float]:
        """Returns the largest memory of a device in bytes, and the peak memory of the process."""
        device_bytes, process_bytes = self._memory_model(placement)
        replicas = self._replica_offset(placement)
        # The allocator keeps memory for each thread, and this memory hardly grows with the number of replicas.
        # Therefore, the offsets of replicas, stages and parts are not multiplied by the number of replicas.
        if placement.stages > 1:
            # Gradients of microbatches that are on their way wait to be added. Those of the next part of a batch wait,
            # too, but only behind those of the part before it.
            whole = self._pipeline(placement, placement.replicas * placement.workers)
            offset = sum(map(self._memory_offset, (whole, self._pipeline_of_size(placement)))) / 2
            return device_bytes, process_bytes + (offset if placement.replicas == 1 else max(offset, replicas))
        if placement.accumulation > 1:
            parts = self._memory_offset(self._find(placement, accumulation=PROBED_PARTS))
            replicas += parts - self._memory_offset(self._find(placement))
        return device_bytes, process_bytes + replicas

    def _replica_offset(self, placement: Placement) -> float:
        """Returns what the measured replicas keep beyond the model, in bytes, in proportion to the samples that a
        replica computes at once."""
        probe = self._find(placement, placement.replicas)
        offset = self._memory_offset(probe)
        size, measured = (one.microbatch_size(self._profile.batch_size) for one in (placement, probe.placement))
        return offset * size / measured if offset > 0 else offset

    def _memory_model(self, placement: Placement) -> Tuple[float, float]:
        """Returns the bytes of `memory` without measured offsets: activations in proportion to the samples, and
        parameters with their gradients."""
        single = self._find(placement)
        size = placement.microbatch_size(self._profile.batch_size)
        batch_size = single.batch_size or self._profile.batch_size
        activations = max(single.step_peak_bytes - single.base_bytes, 0.0) * size / batch_size
        parameters = 2 * single.parameter_bytes  # and gradients
        if placement.stages == 1:
            in_stages = [activations]
            stage_parameters = [parameters]
        else:
            stages = self._pipeline(placement).stages
            total = sum(stage["activation_bytes"] for stage in stages) or 1.0
            schedule = self._schedule_of(placement)
            in_stages = [
                activations
                * stage["activation_bytes"]
                / total
                * held(schedule, number, placement.stages, placement.microbatches)
                for number, stage in enumerate(stages)
            ]
            stage_parameters = [stage["parameter_bytes"] for stage in stages]
        device_bytes = max(map(sum, zip(in_stages, stage_parameters)))
        replicas = placement.replicas
        process_bytes = single.base_bytes + replicas * sum(in_stages) + (replicas - 1) * parameters
        if placement.stages == 1 and placement.accumulation > 1:
            # The gradient of a part is an array of its own until it is added to that of the earlier parts.
            process_bytes += replicas * single.parameter_bytes
        return device_bytes, process_bytes

    def _memory_offset(self, probe: Probe) -> float:
        """Returns the measured peak of a placement beyond the modelled one, in bytes."""
        return probe.step_peak_bytes - self._memory_model(probe.placement)[1]

    def _device_traffic(self, placement: Placement) -> float:
        """Returns the bytes of a step between the devices of a worker: sums and copies of parameters over replicas,
        activations and their gradients between stages."""
        single = self._find(placement)
        traffic = 2.0 * (placement.replicas - 1) * single.parameter_bytes
        if placement.stages > 1:
            probe = self._pipeline(placement)
            sent = sum(stage["sample_bytes"] for stage in probe.stages)
            traffic += 2 * sent * self._profile.batch_size / placement.workers
        return traffic


def _handled_together(store: str, num_workers: int, gradient_bytes: float) -> float:
    """Returns the bytes that all processes of a step send and receive."""
    own, _ = traffic(store, num_workers, gradient_bytes)
    return num_workers * own * (1 if store == "horovod" else 2)  # servers handle each byte, too


def _interpolate(points: Sequence[Tuple[float, float]], x: float) -> float:
    """Returns y at x by straight lines between points with rising x; the first and the last line go on, not below 0.

    >>> _interpolate([(1, 2.0), (3, 6.0)], 2)
    4.0
    """
    if len(points) == 1:
        return points[0][1]
    upper = next((number for number, (at, _) in enumerate(points) if number and at >= x), len(points) - 1)
    (x0, y0), (x1, y1) = points[upper - 1], points[upper]
    return max(y0 + (y1 - y0) * (x - x0) / (x1 - x0), 0.0)


def best_by_workers(forecasts: Sequence[Forecast]) -> List[Forecast]:
    """Returns the best placement of each number of workers for which there is one, fewest workers first."""
    numbers = sorted({one.placement.workers for one in forecasts})
    found = [best_of([one for one in forecasts if one.placement.workers == number]) for number in numbers]
    return [one for one in found if one is not None]


def knee_of(curve: Sequence[Forecast]) -> Forecast:
    """Returns the largest number of workers that are worth their price: those beyond a smaller number that is worth it
    add, each, at least `WORTH` of what the first one does.

    Args:
        curve: result of `best_by_workers`, not empty.
    """
    knee = curve[0]
    first = knee.samples_per_s / knee.placement.workers
    for one in curve[1:]:
        gained = one.samples_per_s - knee.samples_per_s
        if gained >= WORTH * first * (one.placement.workers - knee.placement.workers):
            knee = one
    return knee


def best_of(forecasts: Sequence[Forecast]) -> Optional[Forecast]:
    """Returns the fastest placement that can be trained; None if there is none.

    Of placements whose times differ by less than `EQUAL`, which measurements do not tell apart, the one with the fewest
    devices, microbatches and parts is taken.
    """
    fitting = [one for one in forecasts if not one.reason]
    limit = EQUAL * min((one.step_s for one in fitting), default=0.0)

    def effort(one: Forecast) -> Tuple[int, int, int, float]:
        place = one.placement
        return place.num_devices * place.workers, place.microbatches, place.accumulation, one.step_s

    return min((one for one in fitting if one.step_s <= limit), key=effort, default=None)
