"""The process of a run that talks to Ray: it holds a placement group, and an actor with a relay for each process.

    supervisor <- lines -> this driver <- calls of actors -> RelayActor <- socket -> relay -> process

Ray stays out of the supervisor, because it replaces handlers of signals and ends its process if the head of the cluster
is lost. Lines from a relay (`mxtrain.cluster.remote`) are passed on as they are. Does not import MXNet.
"""

from __future__ import annotations

import os
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple

from mxtrain.cluster import process
from mxtrain.cluster.frames import Message, decode, encode, split
from mxtrain.cluster.process import signal_parents_death, start_child
from mxtrain.config.search_path import module_command
from mxtrain.errors import EXIT_BAD_INPUT, EXIT_CRASHED, EXIT_FINISHED
from mxtrain.files.durable import write_all
from mxtrain.runtime.cores import usable_cores

POLL_S = 0.2
"""Seconds that a call of an actor waits for output of its relay: the delay of a signal or heartbeat to it."""
CHECK_S = 1.0
"""Seconds between two checks of the placement group."""
CONNECT_S = 5.0
"""Seconds in which the head of a cluster must accept a connection."""
MAX_STARTS = 3
"""Number of actors that are started for a process, if they die before they answer."""
MIN_WAIT_S = 1.5
"""Seconds after which resources of the cluster count as too few."""
END_S = 3.0
"""Seconds in which a relay must end before its actor is killed."""
ORPHAN_S = 1.0
"""Seconds until an actor ends that has reported the death of its raylet."""
OBJECT_STORE_BYTES = 100 << 20
"""Object store of a cluster that is started here; Ray's minimum is 75 MB. Only short messages go through it."""
BY_VARIABLE = " (RAY_ADDRESS)"
"""Source of an address, for messages."""
BUSY, TOO_FEW = "are in use", "are too few"
"""Reasons why resources cannot be reserved, for messages."""
_SET_BY_RAY = ("OMP_NUM_THREADS", "PYTHONBREAKPOINT", "SPT_NOENV")


def without_ray(environ: Mapping[str, str]) -> Dict[str, str]:
    """Returns the environment of an actor without the variables that Ray sets for its workers."""
    return {name: text for name, text in environ.items() if not name.startswith("RAY_") and name not in _SET_BY_RAY}


class RelayActor:
    """Runs a relay on a node. It is pickled with its code: Ray's Python on the nodes needs no mxtrain.

    All methods run in the main thread, because the kernel ends the relay with the thread that has started it.

    Args:
        command: command of the relay without Python itself.
        python: path of Python; empty: the one that runs Ray here.
        directory: working directory.
        environment: variables that replace those of the node.
    """

    def __init__(self, command: List[str], python: str, directory: str, environment: Dict[str, str]) -> None:
        python = python or sys.executable
        self._relay: Optional[subprocess.Popen[bytes]] = None
        self._refusal = ""
        self._unsent, self._raylet = b"", os.getppid()
        # Ray starts its processes with SIGINT blocked, and all that they start inherits this.
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        self._socket, end = socket.socketpair()
        self._socket.setblocking(False)
        try:
            if not os.path.isdir(directory):
                raise FileNotFoundError(f"the working directory {directory} is not there: set cluster.directory")
            if not os.access(python, os.X_OK):
                raise FileNotFoundError(f"{python} is not there: set cluster.python")
            self._relay = start_child(
                [python, *command],
                env={**without_ray(os.environ), **environment},
                cwd=directory,
                stdin=end,
                stdout=end,
                stderr=end,
            )
        except OSError as error:
            self._refusal = f"{socket.gethostname()}: {error}"
        finally:
            end.close()

    def exchange(self, data: bytes) -> Tuple[bytes, str, str]:
        """Sends lines to the relay. Returns what it has written, after at most `POLL_S`; why it is lost, or ""; and why
        it could not be started, or ""."""
        # Ray itself ends the actors of a dead raylet only after a quarter of a minute.
        if os.getppid() != self._raylet:
            threading.Timer(ORPHAN_S, os._exit, [EXIT_CRASHED]).start()  # after the answer; the relay ends, too
            return b"", f"the raylet on {socket.gethostname()} has died", ""
        self._unsent += data
        if self._unsent:
            with suppress(OSError):
                self._unsent = self._unsent[self._socket.send(self._unsent) :]
        select.select([self._socket], [], [], POLL_S)
        received = b""
        with suppress(BlockingIOError, ConnectionError):
            while len(received) < 1 << 20:
                read = self._socket.recv(1 << 16)
                if not read:
                    return received, "its relay has ended", self._refusal
                received += read
        return received, "", ""

    def end(self) -> None:
        """Lets the relay kill its processes, and waits until it has ended."""
        if self._relay is not None:
            self._socket.close()
            try:
                self._relay.wait(END_S)
            except subprocess.TimeoutExpired:
                os.killpg(self._relay.pid, signal.SIGKILL)


class RayError(Exception):
    """Ray cannot run the processes. The message is a sentence without a full stop."""


class RayTask:
    """An actor of this run, with the call that it works on.

    Args:
        actor: handle of a `RelayActor`.
        call: its first call, of `exchange`.
        message: message of the supervisor that asks for it.
        num_starts: number of actors that were started for it.
    """

    def __init__(self, actor: Any, call: Any, message: Message, num_starts: int):
        self.actor, self.call, self.message, self.num_starts = actor, call, message, num_starts
        self.has_started = self.is_ending = False
        self.unsent = self.rest = b""
        self.last_line = ""
        self.killed_at = 0.0


class RayDriver:
    """Connects to a cluster, reserves a placement group, and passes lines between the supervisor and the relays.

    The first message has its settings: `address` (host:port; "auto"; "local"; "" = one that runs here, or a new one),
    `bundles` (resources of each process, the first for this machine), `strategy`, `wait_s` (seconds to wait for
    resources that the cluster lacks), `busy_wait_s` (the same for resources that others use), `folder` (of a new
    cluster), `python`, `directory` and `asked` (a description of the resources).
    """

    def __init__(self) -> None:
        self._settings: Message = {}
        self._tasks: Dict[int, RayTask] = {}
        self._read = b""
        self._is_placed = False
        self._checked_at = 0.0
        self._group: Any = None

    def run(self) -> int:
        """Runs until the supervisor closes the connection; returns the exit code."""
        try:
            while not self._settings:
                select.select([0], [], [])
                self._take_messages()
            self._connect()
            self._reserve()
            while True:
                self._take_messages()
                self._take_answers()
                self._check_group()
        except RayError as error:
            send({"failed": str(error)})
            return EXIT_BAD_INPUT
        except _SupervisorLost:
            return EXIT_FINISHED
        finally:
            self._close()

    # The cluster.

    def _connect(self) -> None:
        settings, wanted = self._settings, self._settings["address"]
        address, found_by = find_cluster(wanted)
        if address is not None and not _answers(address):
            # A file of Ray may name a cluster that has ended, but an address that was given must not be ignored.
            if wanted or found_by == BY_VARIABLE:
                raise RayError(f"no Ray cluster answers at {address}{found_by}")
            address = None
        if address is None and wanted not in ("", "local"):
            raise RayError(
                "no Ray cluster runs on this machine (`ray start --head` starts one), and RAY_ADDRESS is not set"
            )
        options: Dict[str, Any] = {}
        if address is None:
            send({"progress": "starting a local Ray cluster"})
            # Ray listens on all interfaces, and runs the code of anyone who reaches it. Versions without tokens ignore
            # these variables.
            os.environ.update({"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": os.urandom(24).hex()})
            # Other launchers start workers with the priority of the command, and Ray adds 15 to its niceness.
            os.environ.setdefault("RAY_worker_niceness", "0")
            need = sum(bundle.get("CPU", 0) for bundle in settings["bundles"])
            options = {
                "address": "local",
                "num_cpus": max(usable_cores(), int(need + 0.999)),
                "include_dashboard": False,
                "object_store_memory": OBJECT_STORE_BYTES,
                "_temp_dir": settings["folder"],
            }
        else:
            send({"progress": f"connecting to Ray at {address}"})
            # Only with "auto", Ray reads the token that `ray start` has written.
            options = {"address": "auto" if found_by not in ("", BY_VARIABLE) else address}
        import ray
        import ray.cloudpickle  # after the variables that Ray reads when it is imported

        ray.cloudpickle.register_pickle_by_value(process)
        self._ray = ray
        self._address = "" if address is None else address
        try:
            ray.init(log_to_driver=False, logging_level="ERROR", configure_logging=False, **options)
        except Exception as error:
            raise RayError(_connection_problem(self._address, error)) from error
        self._head = str(ray.get_runtime_context().gcs_address)
        # Ray has replaced the handler.
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, _raise_lost)

    def _reserve(self) -> None:
        """Waits until the placement group is there, and reports it."""
        from ray.util.placement_group import placement_group

        settings = self._settings
        node = self._ray.util.get_node_ip_address()
        bundles = [dict(bundle) for bundle in settings["bundles"]]
        pinned = bundles[0]
        # Worker 0 writes the run directory of this machine, unless a node without free CPUs is only the head.
        nodes = self._ask(self._ray.nodes)
        here = [one["Resources"] for one in nodes if one["Alive"] and one["NodeManagerAddress"] == node]
        if any(all(has.get(name, 0) >= count for name, count in pinned.items()) for has in here):
            pinned[f"node:{node}"] = 0.001
        self._node = node
        self._group = placement_group(bundles, strategy=settings["strategy"])
        begun = time.monotonic()
        while not self._ask(self._group.wait, 0.2):
            waited = time.monotonic() - begun
            shortage = self._shortage()
            limit_s = settings["busy_wait_s" if shortage == BUSY else "wait_s"]
            # A new cluster reports its resources after a moment.
            if waited > max(limit_s, MIN_WAIT_S):
                after = f" after {limit_s:g} s" if limit_s else ""
                raise RayError(f"{self._describe_resources()}, which {shortage}{after}: {settings['asked']}")
            send({"progress": f"waiting for resources: {self._describe_resources()}; {settings['asked']}"})
            self._take_messages()
        self._report()

    def _describe_resources(self) -> str:
        """Returns a description of the resources of the cluster."""
        total, free = self._ask(self._ray.cluster_resources), self._ask(self._ray.available_resources)
        count = sum(node["Alive"] for node in self._ask(self._ray.nodes))
        parts = [
            f"{total.get(name, 0):g} {name}s ({free.get(name, 0):g} free)" for name in ("CPU", "GPU") if total.get(name)
        ]
        return f"the cluster{self._where} has {' and '.join(parts) or 'no CPUs'} on {count} node{'s' * (count != 1)}"

    @property
    def _where(self) -> str:
        return f" at {self._address}" if self._address else ""

    def _shortage(self) -> str:
        total = self._ask(self._ray.cluster_resources)
        names = {name for bundle in self._settings["bundles"] for name in bundle}
        needed = {name: sum(bundle.get(name, 0) for bundle in self._settings["bundles"]) for name in names}
        is_too_small = any(total.get(name, 0) < count for name, count in needed.items())
        state = self._state().get("stats", {}).get("scheduling_state", "")
        return TOO_FEW if is_too_small or state == "INFEASIBLE" else BUSY

    def _state(self) -> Dict[str, Any]:
        """Returns Ray's description of the placement group."""
        from ray.util.placement_group import placement_group_table

        return dict(self._ask(placement_group_table, self._group))

    def _ask(self, question: Callable[..., Any], *arguments: Any) -> Any:
        """Returns the answer of the cluster to a call of Ray.

        Raises:
            RayError: the head, or Ray's node on this machine, was lost.
        """
        try:
            return question(*arguments)
        except _SupervisorLost:
            raise
        except Exception as error:  # Ray has no common class for these errors
            raise RayError(f"the connection to the Ray cluster{self._where} was lost: {_reason(error)}") from error

    def _report(self) -> None:
        nodes = self._ask(self._ray.nodes)
        placed = self._state()["bundles_to_node_id"]
        self._is_placed = True
        send(
            {
                "placed": {
                    "address": self._node,
                    "cluster": self._address,
                    "nodes": [placed[index] for index in range(len(placed))],
                    "addresses": sorted({node["NodeManagerAddress"] for node in nodes if node["Alive"]}),
                }
            }
        )

    def _check_group(self) -> None:
        """Reports if nodes of the placement group are lost, and if all bundles have a node again.

        Raises:
            RayError: the head of the cluster, or Ray's node on this machine, was lost.
        """
        now = time.monotonic()
        if now - self._checked_at < CHECK_S:
            return
        self._checked_at = now
        # Without its head, Ray's own calls block for a minute, and then end this process.
        if not _answers(self._head):
            raise RayError(f"the head of the Ray cluster at {self._head} was lost")
        state = self._state()["state"]
        if state == "REMOVED":
            # With the raylet that this process belongs to, Ray drops the job, but leaves its driver running.
            raise RayError(f"Ray's node on this machine ({self._node}) was lost")
        is_placed = state == "CREATED"
        if is_placed and not self._is_placed:
            self._report()
        elif not is_placed and self._is_placed:
            self._is_placed = False
            send({"displaced": f"Ray has lost a node: {self._describe_resources()}; {self._settings['asked']}"})

    # From the supervisor.

    def _take_messages(self) -> None:
        while select.select([0], [], [], 0)[0]:
            read = os.read(0, 1 << 16)
            if not read:
                raise _SupervisorLost
            lines, self._read = split(self._read + read)
            for message in filter(None, map(decode, lines)):
                self._handle(message)

    def _handle(self, message: Message) -> None:
        if "bundles" in message:
            self._settings = message
        elif "start" in message:
            self._start(message)
        elif "kill" in message:
            task = self._tasks.get(message["kill"])
            if task is not None and not task.has_started:  # it may wait for a node
                self._forget(message["kill"])
            elif task is not None and not task.is_ending:
                self._end(task)
        else:  # a heartbeat for all relays, or a signal for one
            line = encode(message)
            for index, task in self._tasks.items():
                if message.get("of", index) == index:
                    task.unsent += line

    def _start(self, message: Message, num_starts: int = 1) -> None:
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        # The process of a standby has reserved the resources of the bundle already.
        bundle = {} if message.get("is_standby") else self._settings["bundles"][message["bundle"]]
        launch, python = message["launch"], self._settings["python"]
        for spec in filter(None, launch["launch_specs"]):
            spec["command"][0] = python
        relay = module_command("mxtrain.cluster.remote")[1:]
        actor = (
            self._ray.remote(RelayActor)
            .options(
                num_cpus=bundle.get("CPU", 0),
                num_gpus=bundle.get("GPU", 0),
                max_restarts=0,
                scheduling_strategy=PlacementGroupSchedulingStrategy(self._group, message["bundle"]),
            )
            .remote(relay, python, self._settings["directory"], launch["environment"])
        )
        self._tasks[message["start"]] = RayTask(actor, actor.exchange.remote(encode(launch)), message, num_starts)

    # From the actors.

    def _take_answers(self) -> None:
        calls = {task.call: index for index, task in self._tasks.items()}
        if not calls:
            time.sleep(POLL_S / 4)
            return
        ready, _ = self._ray.wait(list(calls), num_returns=1, timeout=POLL_S / 4)
        for call in ready:
            index = calls[call]
            try:
                answer = self._ray.get(call)
            except self._ray.exceptions.RayError as error:
                self._lose(index, _reason(error))
                continue
            self._take_answer(index, self._tasks[index], answer)
        for index, task in list(self._tasks.items()):
            if task.is_ending and time.monotonic() - task.killed_at > 2 * END_S:
                self._forget(index)

    def _take_answer(self, index: int, task: RayTask, answer: Any) -> None:
        if task.is_ending:
            self._forget(index)
            return
        task.has_started = True
        received, problem, refusal = answer
        lines, task.rest = split(task.rest + received)
        for line in lines:
            self._pass_on(index, task, line)
        if refusal:
            send({"of": index, "refused": refusal})
            self._end(task)
            return
        if problem:
            self._lose(index, f"{problem}{': ' * bool(task.last_line)}{task.last_line}")
            return
        task.call, task.unsent = task.actor.exchange.remote(task.unsent), b""

    def _pass_on(self, index: int, task: RayTask, line: bytes) -> None:
        message = decode(line)
        if message is None:
            task.last_line = line.decode(errors="replace").strip() or task.last_line
            return
        if "hello" in message:
            message["rank"] = index
        send(message)

    def _lose(self, index: int, reason: str) -> None:
        """Ends an actor whose relay has ended, or which is lost. One that has not started is started again: Ray takes a
        quarter of a minute to notice that a node is dead, and places actors there until then."""
        task = self._tasks[index]
        if not task.has_started and not task.is_ending and task.num_starts < MAX_STARTS:
            self._start(task.message, task.num_starts + 1)
            return
        if not task.is_ending:
            send({"of": index, "lost": reason})
        self._forget(index)

    def _end(self, task: RayTask) -> None:
        task.is_ending, task.killed_at = True, time.monotonic()
        task.call = task.actor.end.remote()

    def _forget(self, index: int) -> None:
        with suppress(Exception):  # the cluster may be lost
            self._ray.kill(self._tasks[index].actor)
        del self._tasks[index]
        send({"of": index, "gone": 1})

    def _close(self) -> None:
        """Ends all processes, and the cluster if it was started here."""
        with suppress(Exception):
            if self._tasks:
                calls = [task.actor.end.remote() for task in self._tasks.values()]
                self._ray.wait(calls, num_returns=len(calls), timeout=END_S)
        with suppress(Exception):
            self._ray.shutdown()
        if self._settings.get("folder"):
            shutil.rmtree(self._settings["folder"], ignore_errors=True)


class _SupervisorLost(Exception):
    """The supervisor has closed the connection, or was lost."""


def _raise_lost(*_: object) -> None:
    raise _SupervisorLost


def send(message: Message) -> None:
    """Sends a message to the supervisor.

    Raises:
        _SupervisorLost: nobody reads it.
    """
    try:
        write_all(1, encode(message))
    except OSError:
        raise _SupervisorLost from None


def find_cluster(wanted: str) -> Tuple[Optional[str], str]:
    """Returns the address of the head of a cluster, or None, and where it was found, for messages."""
    for address, source in ((wanted, ""), (os.environ.get("RAY_ADDRESS", ""), BY_VARIABLE)):
        if address == "local":  # a new cluster, in the variable as well
            return None, ""
        if address not in ("", "auto"):
            return address, source
    # Ray's own function for this would import Ray, whose variables are not set yet.
    folder = os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp"
    with suppress(OSError):
        file = Path(folder, "ray", "ray_current_cluster")
        return file.read_text().strip() or None, f", which {file} names"
    return None, ""


def _answers(address: str) -> bool:
    """Returns True if something accepts connections at an address, HOST:PORT or [IPV6]:PORT."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_S).close()
    except (OSError, ValueError):
        return False
    return True


def _connection_problem(address: str, error: Exception) -> str:
    """Returns the reason why Ray cannot be used."""
    where = f"Ray at {address}" if address else "a local Ray cluster"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    versions = re.findall(r"(?:Ray|Python): (\S+)", str(error))
    if "Version mismatch" in str(error) and len(versions) == 4:
        there, here = (f"Ray {ray} and Python {python}" for ray, python in zip(versions[::2], versions[1::2]))
        return f"{where} has {there}, and this command runs with {here}. All nodes need the same versions"
    return f"{where} cannot be used: {'; '.join(lines[:3])}"


def _reason(error: Exception) -> str:
    """Returns the first informative line of an error of an actor."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


def main() -> int:
    """Returns the exit code."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _raise_lost)
    return RayDriver().run() if signal_parents_death(signal.SIGHUP) else EXIT_CRASHED


if __name__ == "__main__":
    sys.exit(main())
