"""Launches processes as children of Ray actors, in a placement group over the nodes of a Ray cluster.

The scheduler runs on this machine, and worker 0 as well if Ray's node here has its resources. Ray itself is imported in
a driver process only (`mxtrain.cluster.ray_driver`), which lives as long as the launcher.
"""

from __future__ import annotations

import importlib.util
import math
import os
import re
import time
from contextlib import ExitStack, closing
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Sequence

from mxtrain.cluster.frames import Message
from mxtrain.cluster.hosts import free_port, interface_address, is_own_address
from mxtrain.cluster.launch_spec import Root, launch_specs, local_root, name_of
from mxtrain.cluster.launched import OWN_GPUS
from mxtrain.cluster.launcher import Launcher, QueueDisplay, directory_of, launch_message, write_proof
from mxtrain.cluster.process import LaunchSpec, Process
from mxtrain.cluster.relayed import Channel, RelayedProcess
from mxtrain.cluster.remote import GPU_VARIABLES
from mxtrain.cluster.spec import Cluster
from mxtrain.config.libraries import EXTRAS, check_versions, missing_message
from mxtrain.config.search_path import module_command
from mxtrain.errors import ConfigError, did_you_mean
from mxtrain.files.temporary import temporary_root
from mxtrain.files.unused_folders import locked_folder
from mxtrain.runtime.network import LOOPBACK

SETTING = "cluster.launcher=ray"
STRATEGIES = ("spread", "pack", "strict_spread", "strict_pack")
BUSY_WAIT_S = 30.0
"""Default of `wait` for resources that other jobs of the cluster use."""
ANSWER_S = 2.0
"""Seconds that a restart waits for news before it says why it waits."""
MAX_ROOT = 20
"""Characters of the folder for temporary files: names of Unix sockets, which Ray makes 82 characters below it, have at
most 107."""


@dataclass(frozen=True)
class RayOptions:
    """Options of `cluster.launcher_options` for Ray."""

    address: str = ""
    """host:port of the cluster's head; auto: RAY_ADDRESS, or the cluster of this machine; local: a new one; "": as
    auto, or a new one if there is none."""
    cpus: Optional[float] = None
    """CPUs that Ray reserves for a worker, and the worker's OpenMP threads; None: 1, and threads as without Ray."""
    gpus: float = 0.0
    """GPUs that Ray reserves for a worker."""
    server_cpus: float = 1.0
    """CPUs that Ray reserves for a server."""
    strategy: str = "spread"
    """Placement on nodes: one of `STRATEGIES`."""
    wait: Optional[float] = None
    """Seconds to wait for resources; None: `BUSY_WAIT_S` if they are in use, 0 if the cluster does not have them."""

    @property
    def worker_resources(self) -> Dict[str, float]:
        """Returns the resources of a worker."""
        return {"CPU": self.cpus or 1.0, **({"GPU": self.gpus} if self.gpus else {})}

    @property
    def worker_variables(self) -> Dict[str, str]:
        """Returns the environment variables with which a worker uses these resources."""
        sets_threads = self.cpus is not None and "OMP_NUM_THREADS" not in os.environ
        threads = {"OMP_NUM_THREADS": str(max(1, int(self.cpus or 1)))} if sets_threads else {}
        return {**({OWN_GPUS: "1"} if self.gpus else {}), **threads}


def read_options(words: Sequence[str]) -> RayOptions:
    """Reads `cluster.launcher_options`, of which the last one with a name counts.

    Raises:
        ConfigError: a name is unknown, or a value is not allowed.
    """
    names = [field.name for field in fields(RayOptions)]
    options = RayOptions()
    for word in words:
        name, equals, text = word.partition("=")
        if name not in names or not equals:
            raise ConfigError(
                f"cluster.launcher_options: '{word}' is no option of {SETTING}. Type NAME=VALUE with one of "
                f"{', '.join(names)}.{did_you_mean(name, names)}"
            )
        options = replace(options, **{name: _read_value(name, text)})
    return options


def _read_value(name: str, text: str) -> Any:
    if name == "address":
        if text in ("auto", "local") or re.fullmatch(r"[A-Za-z0-9_.-]+:[0-9]{1,5}", text):
            return text
        hint = (
            ". Ray's client cannot place a process beside the run directory: start the command on a node of the cluster"
        )
        raise _wrong(name, text, f"auto, local or HOST:PORT{hint * text.startswith('ray:')}")
    if name == "strategy":
        if text.lower() not in STRATEGIES:
            raise _wrong(name, text, f"one of {', '.join(STRATEGIES)}{did_you_mean(text, STRATEGIES)}")
        return text.lower()
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    lowest = 0.0 if name in ("gpus", "wait") else 0.01
    if not lowest <= number < 1e6 or (number > 1 and name != "wait" and number != int(number)):
        raise _wrong(name, text, f"a number from {lowest:g} on" + "; above 1 a whole one" * (name != "wait"))
    return number


def _wrong(name: str, text: str, allowed: str) -> ConfigError:
    return ConfigError(f"cluster.launcher_options: {name}={text}: must be {allowed}.")


class RayLauncher(Launcher):
    """Actors of a Ray cluster, each with a relay that starts one process.

    Raises:
        ConfigError: an option is wrong, Ray is missing, or the cluster cannot be reached or is too small.
    """

    def __init__(self, cluster: Cluster, van: Optional[str]):
        super().__init__(cluster, van)
        self._options = read_options(cluster.launcher_options)
        if cluster.standby and self._options.gpus:
            raise ConfigError(
                f"cluster.standby=true with {SETTING} and GPUs: Ray gives the GPUs of a worker to no second process. "
                "Leave cluster.standby out."
            )
        _require_ray()
        if cluster.interface is not None:
            interface_address(cluster.interface)
        self._num_servers = 0 if van is None else cluster.num_servers
        self._num_started = 0
        self._proof: Optional[Path] = None
        self._channel = self._connect(self._options.wait or 0.0)
        try:
            self._wait_until_placed()
            self._find_place()
        except BaseException:
            self._channel.close()
            raise

    def _find_place(self) -> bool:
        """Sets the address and the place to those of the last placement. Returns True if all nodes of the cluster are
        on this machine."""
        placed, interface = self._channel.last_placed, self.cluster.interface
        count = len(set(placed["nodes"]))
        cluster = f"on {count} node{'s' * (count > 1)} of the Ray cluster at {placed['cluster']}"
        self.place = cluster if placed["cluster"] else "in a local Ray cluster"
        is_local = interface is None and all(map(is_own_address, placed["addresses"]))
        address = placed["address"] if interface is None else interface_address(interface)
        self.address = LOOPBACK if is_local else address
        return is_local

    def obstacle(self) -> str:
        if self._channel.problem:
            super().close()  # standbys end with their connection
            self._channel.close()
            self._channel = self._connect(self.cluster.start_timeout)
        deadline = time.monotonic() + ANSWER_S
        while not self._channel.is_placed and not self._channel.problem and time.monotonic() < deadline:
            self._channel.exchange_messages()
            time.sleep(0.05)
        return "" if self._channel.is_placed else self._channel.problem or self._channel.progress

    def close(self) -> None:
        super().close()
        self._channel.close()

    def start(self, arguments: Sequence[str], logs: Path, attempt: int, stack: ExitStack) -> List[Process]:
        root = local_root(self.van) if self._find_place() else Root(self.address, free_port(self.address))
        placed = self._channel.last_placed
        self._proof = write_proof(logs, stack)
        ranks, numbers = range(self.cluster.workers), range(self._num_servers)
        names = [*(name_of("worker", rank) for rank in ranks), *(name_of("server", number) for number in numbers)]
        bundles = dict(zip(names, self._bundles_of(placed["nodes"])))
        nodes = {name: placed["nodes"][bundle] for name, bundle in bundles.items()}
        specs = launch_specs(
            self.cluster, self.van, arguments, logs, root, {name_of("scheduler", 0): placed["nodes"][0], **nodes}
        )
        if root.is_local:
            stack.callback(root.remove_sockets, len(specs))
        return [
            self._start_here(spec, stack)
            if spec.name not in bundles
            else stack.enter_context(
                closing(self._start_or_begin(spec, bundles[spec.name], attempt == 0, self.cluster.start_timeout))
            )
            for spec in specs
        ]

    def _start_standby(self, process: Process) -> Process:
        if not isinstance(process, RayProcess):  # the scheduler
            return super()._start_standby(process)
        return self._start(process.spec, process.bundle, is_standby=True)

    def _start_or_begin(
        self,
        spec: LaunchSpec,
        bundle: int,
        is_first: bool = False,
        start_timeout_s: float = math.inf,  # a replacement waits for a node
    ) -> Process:
        """Starts a process in a bundle, by its standby if that is there."""
        if spec.name.startswith("worker"):
            spec = replace(spec, environment={**spec.environment, **self._options.worker_variables})
        standby = self._standbys.get(spec.name)
        if isinstance(standby, RayProcess) and standby.bundle != bundle:
            # Ray has placed the bundles anew, and ranks have moved between them.
            self._standbys.pop(spec.name).close()
        return self._begin_standby(spec) or self._start(spec, bundle, is_first, start_timeout_s)

    def _start(
        self,
        spec: LaunchSpec,
        bundle: int,
        is_first: bool = False,
        start_timeout_s: float = math.inf,
        is_standby: bool = False,
    ) -> RayProcess:
        index, self._num_started = self._num_started, self._num_started + 1
        # GPUs of this machine mean nothing on another one.
        message = launch_message(self.cluster, [*[None] * index, spec], self._proof, is_standby, GPU_VARIABLES)
        process = RayProcess(
            spec,
            self._channel,
            index,
            is_first,
            start_timeout_s,
            lambda another: self._start_or_begin(another, bundle),
            bundle,
        )
        self._channel.send({"start": index, "bundle": bundle, "is_standby": is_standby, "launch": message})
        return process

    def _bundles_of(self, nodes: Sequence[str]) -> List[int]:
        """Returns the bundles of the workers by rank, and of the servers. The ranks on a node follow each other.

        Args:
            nodes: the node of each bundle.
        """
        workers = list(range(self.cluster.workers))
        workers.sort(key=lambda bundle: nodes.index(nodes[bundle]))  # bundle 0 is that of worker 0
        return [*workers, *range(self.cluster.workers, len(nodes))]

    # The driver.

    def _connect(self, wait_s: float) -> RayChannel:
        """Starts a driver.

        Args:
            wait_s: seconds to wait for resources that the cluster does not have.
        """
        options, cluster = self._options, self.cluster
        settings = {
            "address": options.address,
            "bundles": [
                *[options.worker_resources] * cluster.workers,
                *[{"CPU": options.server_cpus}] * self._num_servers,
            ],
            "strategy": options.strategy.upper(),
            "wait_s": wait_s,
            "busy_wait_s": max(wait_s, BUSY_WAIT_S if options.wait is None else options.wait),
            "python": "" if cluster.python == "auto" else cluster.python,
            "directory": directory_of(cluster),
            "asked": self._asked(),
        }
        return RayChannel(settings, options.address in ("", "local"))

    def _asked(self) -> str:
        """Returns a clause with the resources that the run needs, and with the settings for fewer."""
        options, workers, servers = self._options, self.cluster.workers, self._num_servers
        total = workers * (options.cpus or 1.0) + servers * options.server_cpus
        parts = [f"{workers} worker{'s' * (workers > 1)} with cpus={options.cpus or 1:g}"]
        if options.gpus:
            parts[0] += f" and gpus={options.gpus:g}"
        if servers:
            parts.append(f"{servers} server{'s' * (servers > 1)} with server_cpus={options.server_cpus:g}")
        gpus = f" and {workers * options.gpus:g} GPUs" if options.gpus else ""
        return f"{', '.join(parts)} need {total:g} CPUs{gpus} ({options.strategy})"

    def _wait_until_placed(self) -> None:
        """Waits for the placement group, and shows the reason for waiting.

        Raises:
            ConfigError: the cluster cannot be used.
        """
        begun = time.monotonic()
        channel = self._channel

        def line() -> str:
            return f"{channel.progress}, {time.monotonic() - begun:.0f} s" if channel.progress else ""

        display = QueueDisplay(line)
        limit_s = max(self.cluster.start_timeout, self._options.wait or 0.0) + BUSY_WAIT_S
        try:
            while not channel.is_placed and not channel.problem:
                channel.exchange_messages()
                display.update()
                if time.monotonic() - begun > limit_s:
                    raise ConfigError(f"{SETTING}: Ray has not answered for {limit_s:g} s ({channel.progress}).")
                time.sleep(0.02)
        finally:
            display.close()
        if channel.problem:
            raise ConfigError(f"{SETTING}: {channel.problem}.")


def _require_ray() -> None:
    """Raises a ConfigError if Ray is not installed, or has another version."""
    check_versions(EXTRAS["ray"], SETTING, ConfigError)
    if importlib.util.find_spec("ray") is None:
        error = ModuleNotFoundError("No module named 'ray'", name="ray")
        raise ConfigError(missing_message(error, "ray", SETTING))


class RayChannel(Channel):
    """The connection to the driver of Ray and to the processes of its actors.

    Args:
        settings: first message for the driver.
        may_start: True if the driver may start a cluster, which needs a folder.
    """

    shutdown_timeout_s = 10.0

    def __init__(self, settings: Message, may_start: bool):
        self.is_placed = False
        """True if all resources are reserved on nodes that live."""
        self.last_placed: Message = {}
        """The last placement: addresses of this machine, the cluster and all nodes; the node of each bundle."""
        self.progress = ""
        self._failure = ""
        self._folders = ExitStack()
        folder = ""
        if may_start:
            root = temporary_root()
            parent = Path(root if len(root) <= MAX_ROOT else "/tmp")
            folder = str(self._folders.enter_context(locked_folder(parent, "mxtrain-ray-")))
        environment = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0"}
        super().__init__(
            module_command("mxtrain.cluster.ray_driver"), environment, {**settings, "folder": folder}, None, "Ray"
        )

    @property
    def problem(self) -> str:
        """Returns why Ray cannot be used; empty if it can."""
        return self._failure or self.end or ""

    def close(self) -> None:
        super().close()
        self._folders.close()

    def _handle(self, message: Message) -> None:
        if "placed" in message:
            self.is_placed, self.last_placed = True, message["placed"]
        elif "displaced" in message:
            self.is_placed, self.progress = False, message["displaced"]
        elif "progress" in message:
            self.progress = message["progress"]
        elif "failed" in message:
            self._failure = message["failed"]
        else:
            super()._handle(message)


class RayProcess(RelayedProcess):
    """A process that the relay of an actor starts.

    Args:
        spec: its launch spec; the environment is added to that of its node.
        channel: connection to the driver.
        index: its index in the launch specs.
        is_first: True in the first attempt of the run.
        start_timeout_s: seconds within which the actor must start.
        start: starts another process in its bundle.
        bundle: number of its bundle in the placement group.
    """

    def __init__(
        self,
        spec: LaunchSpec,
        channel: RayChannel,
        index: int,
        is_first: bool,
        start_timeout_s: float,
        start: Callable[[LaunchSpec], Process],
        bundle: int = 0,
    ):
        super().__init__(spec, channel, index, ranked=True, is_first=is_first)
        self.bundle = bundle
        self._channel: RayChannel = channel
        self.start_replacement, self._start_timeout_s = start, start_timeout_s
        self._created_at = time.monotonic()
        self._lost = ""
        self._is_gone = False

    def take(self, message: Message) -> None:
        if "lost" in message:
            self._lost = message["lost"]  # of no interest after its exit code
        elif "gone" in message:
            self._is_gone = True
        else:
            super().take(message)

    def describe_silence(self, timeout_s: float) -> Optional[str]:
        lost = self._lost or self._channel.problem
        if lost:
            return f"was lost: {lost}"
        waited = time.monotonic() - self._created_at
        if not self.pid and waited > self._start_timeout_s:
            return f"was not started within {waited:.0f} s by Ray"
        return super().describe_silence(timeout_s)

    def kill(self) -> None:
        if not self._is_gone and self._channel.end is None:
            self._channel.send({"kill": self._index})

    def close(self) -> None:
        self.kill()
        deadline = time.monotonic() + self._channel.shutdown_timeout_s
        while not self._is_gone and self._channel.end is None and time.monotonic() < deadline:
            self._channel.exchange_messages()
            time.sleep(0.02)
        self._channel.processes.pop(self._index, None)
        self._close_output()
