"""Worker of a study: takes a trial, trains it rung by rung in a separate process, and takes the next.

Workers keep no important state in memory, so any process may die at any time. Trials are in Optuna's storage,
checkpoints and status.json in the run directories, and the kernel frees locks. The training process inherits the lock
of its trial. If its worker dies, it can therefore finish the rung, and no other worker trains the same trial meanwhile.
"""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sysconfig
import time
from contextlib import closing, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, ContextManager, Dict, List, Optional, Protocol, Sequence, Union

from mxtrain.checkpoint import lock_run_directory, refuse_links
from mxtrain.cluster.fork_server import ForkedProcess, ForkServer
from mxtrain.cluster.reported_cause import ReportedCause
from mxtrain.cluster.stopping import WARNINGS, SignalStop, forwarded_warnings, was_told_to_end
from mxtrain.config.search_path import module_command
from mxtrain.errors import (
    EXIT_BAD_INPUT,
    EXIT_BUDGET,
    EXIT_CRASHED,
    EXIT_FINISHED,
    EXIT_NON_FINITE,
    MxtrainError,
    RunDirectoryError,
)
from mxtrain.files.durable import append_to
from mxtrain.tuning import population
from mxtrain.tuning.file_lock import FileLock
from mxtrain.tuning.folder import StudyDescription, StudyFolder
from mxtrain.tuning.samplers import draw
from mxtrain.tuning.space import Values, overrides_of_trial
from mxtrain.tuning.trials import Study, TrialProgress, note_pruned, read_progress, recorded_values

POLL_S = 0.5
"""Seconds between two searches for an unlocked trial."""
SHUTDOWN_S = 25.0
"""Seconds in which a run must save after a signal; the worker itself is killed after 30."""
MAX_DEATHS = 3
"""Number of times a trial may be killed without progress before it counts as failed."""
LAST_BYTES = 4096

SAVES_ONLY = "checkpoint.on_signal=save"
"""Override of trials that go on after a warning."""

Say = Callable[[str], object]


class Display(Protocol):
    """Opens a display of a rung of a trial, such as `TrialDisplay`."""

    def __call__(
        self, title: str, run_dir: Path, description: StudyDescription, budget: Optional[int], /
    ) -> ContextManager[object]:
        """Returns the display.

        Args:
            title: name of the trial.
            run_dir: its run directory, which need not exist yet.
            description: description of the study.
            budget: budget of the rung; None for the last one.
        """


def no_display(
    title: str, run_dir: Path, description: StudyDescription, budget: Optional[int]
) -> ContextManager[object]:
    """Shows nothing."""
    return nullcontext()


class StudyStopped(MxtrainError):
    """A trial failed because of invalid input, as all further trials would. The study waits for the user."""

    exit_code = EXIT_BAD_INPUT


class WorkerStopped(MxtrainError):
    """The training process of a trial received a signal, so the worker stops, too. The trial can be continued."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


@dataclass
class Job:
    """A trial that this worker has taken.

    Attributes:
        number: number of the trial.
        trial: Optuna's trial.
        claim: lock of the trial, which this worker holds.
        values: values of the tuned settings.
        reported: budgets of the rungs whose values have been reported.
        run_dir: current run directory.
        overrides: further overrides of the run.
        cause: cause with which its last process ended; empty if it reported none.
    """

    number: int
    trial: Any
    claim: FileLock
    values: Values
    reported: List[int]
    run_dir: Path
    overrides: Sequence[str] = ()
    cause: str = ""


def environment() -> Dict[str, str]:
    """Returns the environment of a training process, which finds this copy of mxtrain from any folder.

    The working folder of a study is not on the path of its processes, because it may contain untrusted modules.
    """
    own = str(Path(__file__).resolve().parents[2])
    if own in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib")):
        return dict(os.environ)
    path = os.environ.get("PYTHONPATH", "")
    return {**os.environ, "PYTHONPATH": os.pathsep.join(dict.fromkeys(filter(None, [*path.split(os.pathsep), own])))}


class Worker:
    """Trains trials of a study until all are finished.

    Args:
        folder: folder of the study.
        description: description of the study. It is not read again from the folder, which others may change.
        say: function that shows a line of progress.
        display: opens the display of a rung.
    """

    def __init__(
        self, folder: StudyFolder, description: StudyDescription, say: Say, display: Display = no_display
    ) -> None:
        self._folder, self._description, self._say, self._display = folder, description, say, display
        self._study = Study(folder, self._description)
        self._is_population = self._description.settings.sampler == "pbt"
        self._waits = False
        folder_of_runs = Path(self._description.working_folder)
        self._working_folder = folder_of_runs if folder_of_runs.is_dir() else None
        self._runs = ForkServer(self._working_folder)

    @property
    def study(self) -> Study:
        """Returns the study."""
        return self._study

    def run(self) -> None:
        """Trains until no trial is left; see `_train_trials`."""
        with closing(self._runs):
            self._train_trials()

    def _train_trials(self) -> None:
        """Trains until no trial is left.

        Raises:
            StudyStopped: a trial failed because of wrong input.
            WorkerStopped: a training process received a signal.
            KeyboardInterrupt: this process was told to end; the current run has saved.
        """
        while True:
            self._require_no_warning()
            job = self.next_job()
            if job is not None:
                self._waits = False
                try:
                    self._train(job)
                finally:
                    job.claim.release()
            elif all(trial.state.is_finished() for trial in self._study.trials):
                return
            else:
                if not self._waits:
                    self._say("all trials are begun; waiting for those that other workers train")
                self._waits = True
                time.sleep(POLL_S)

    def _require_no_warning(self) -> None:
        """Raises `WorkerStopped` after a scheduler announced the end of the job, unless trials only save then."""
        if SignalStop.warning is not None and SAVES_ONLY not in self._description.overrides:
            name = signal.Signals(SignalStop.warning).name
            raise WorkerStopped(f"{name} received: no further trial begins; the study can be continued", EXIT_BUDGET)

    # Selection of a trial.

    def next_job(self) -> Optional[Job]:
        """Takes an unfinished trial that no process trains, otherwise a new trial.

        Returns:
            The trial, whose lock the caller must release; None if other workers have taken all.

        Raises:
            StudyStopped: a trial failed because of wrong input.
        """
        with self._folder.lock:
            return self._next_job()

    def _next_job(self) -> Optional[Job]:
        if self._study.stop_cause:
            raise StudyStopped(
                f"the study has stopped: {self._study.stop_cause}\nOnce that is mended, "
                f"`mxtrain tune {self._folder.path}` goes on."
            )
        trials = self._study.trials
        total = self._folder.read().settings.n_trials or 0
        if self._is_population:
            return self._next_member(trials, total)
        for frozen in trials:
            if frozen.state.is_finished():
                continue
            claim = self._try_lock(frozen.number, self._folder.run_dir(frozen.number))
            if claim is not None:
                # Another worker may have finished the trial after it was listed and before it was locked.
                if self._study.trials[frozen.number].state.is_finished():
                    claim.release()
                    continue
                self._say(f"trial {frozen.number}: continues what an earlier worker began")
                return self._start(frozen.number, self._study.adopt(frozen), claim, sorted(frozen.intermediate_values))
        if len(trials) >= total:
            return None
        # Locked first: the next worker takes any trial in the storage that nobody has locked.
        claim = self._folder.claim(len(trials))
        claim.acquire()
        return self._start(len(trials), self._create(len(trials)), claim, [])

    def _create(self, number: int) -> Any:
        """Creates a trial. If its run directory exists, because the journal was removed, it gets the values of this
        run: a sampler that learns from other trials could draw other ones."""
        values = recorded_values(self._folder.run_dir(number), self._description.space)
        with suppress(ValueError):  # values of another space
            if values:
                return self._study.restore(values)
        return self._study.ask()

    def _next_member(self, trials: Sequence[Any], total: int) -> Optional[Job]:
        """Returns a member of the population in its lowest unfinished rung; a rung starts when all have ended the
        previous one."""
        while len(trials) < total:
            draw(self._study.ask(), self._description.space)
            trials = self._study.trials
        first: List[Values] = []
        for frozen in trials:  # a killed worker may have created a trial without drawing all values
            first.append(draw(self._study.adopt(frozen), self._description.space))
        reported = [population.values_by_budget(self._description, frozen) for frozen in trials]
        rungs = population.next_rung(self._description, reported)
        rung = min(rungs.values())
        members = population.members_at(self._description, first, reported, rung)
        if rung:
            previous_members = population.members_at(self._description, first, reported, rung - 1)
            population.take_over(self._folder, members, previous_members)
        for frozen, member in zip(trials, members):
            if frozen.state.is_finished() or rungs[frozen.number] > rung:
                continue
            run_dir = self._folder.run_dir(member.run)
            claim = self._try_lock(frozen.number, run_dir)
            if claim is None:
                continue
            fresh = self._study.trials[frozen.number]
            if fresh.state.is_finished() or fresh.intermediate_values != frozen.intermediate_values:
                claim.release()
                continue
            trial = self._study.adopt(fresh)
            if member.source is not None and fresh.user_attrs.get("run") != member.run:
                self._say(f"trial {member.number}: takes over the weights of trial {member.source}")
                trial.set_user_attr("run", member.run)
                trial.set_user_attr("values", dict(member.values))
            return Job(
                member.number,
                trial,
                claim,
                dict(member.values),
                sorted(fresh.intermediate_values),
                run_dir,
                population.overrides_of(self._folder, member),
            )
        return None

    def _try_lock(self, number: int, run_dir: Path) -> Optional[FileLock]:
        """Locks a trial. Returns None if another worker or a training process holds its lock or run directory."""
        claim = self._folder.claim(number)
        if not claim.acquire(wait=False):
            return None
        try:
            if run_dir.is_dir():
                lock_run_directory(run_dir).release()
        except RunDirectoryError:  # the user trains in this directory by hand
            claim.release()
            return None
        return claim

    def _start(self, number: int, trial: Any, claim: FileLock, reported: List[int]) -> Job:
        try:
            values = draw(trial, self._description.space)
            return Job(number, trial, claim, values, reported, self._folder.run_dir(number))
        except BaseException:
            claim.release()
            raise

    # Training.

    def _train(self, job: Job) -> None:
        """Trains a trial from its current state to its end, or until it is pruned."""
        refuse_links(self._folder.path, (job.run_dir.name,))  # the folder may be untrusted
        settings_text = " ".join(overrides_of_trial(job.values)) or "no settings differ"
        self._say(f"{self._title(job)}: {settings_text}")
        rung = 0
        while True:
            budget = self._description.budget(rung)
            if budget is None or budget not in job.reported:
                progress = self._train_rung(job, budget)
                if progress is None:
                    return
                if progress.exit_code == EXIT_FINISHED:
                    self._finish(job, progress, rung)
                    return
                assert budget is not None
                if self._is_population:
                    self._report(job, progress, budget)
                    return
                if self._is_pruned(job, progress, budget):
                    return
            rung += 1

    def _title(self, job: Job) -> str:
        """Returns the number of a trial, and its position among all trials, as the first trial has the number 0."""
        total = max(self._folder.read().settings.n_trials or 0, job.number + 1)
        return f"trial {job.number} ({job.number + 1} of {total})"

    def _train_rung(self, job: Job, budget: Optional[int]) -> Optional[TrialProgress]:
        """Trains a trial to the end of a rung. Returns None if the trial failed."""
        deaths = 0
        while True:
            progress_before = read_progress(job.run_dir)
            if progress_before.reached(self._description.settings, budget):
                return progress_before
            if progress_before.is_failure:
                return self._diverged(job, progress_before.cause, budget)
            code = self.train_process(job, budget)
            progress = read_progress(job.run_dir)
            if code == EXIT_BAD_INPUT:
                self._stop_study(job)
            if was_told_to_end(code, progress.cause) or -code in WARNINGS:
                code = EXIT_BUDGET if -code in WARNINGS else code  # it had not begun to handle them
                raise WorkerStopped(f"trial {job.number}: its run was told to stop; any worker continues it", code)
            if code == EXIT_NON_FINITE:
                return self._diverged(job, progress.cause or f"exit code {code}", budget)
            if code == EXIT_CRASHED:
                self._fail(job, progress.cause or job.cause or f"exit code {code}")
                return None
            if code not in (EXIT_FINISHED, EXIT_BUDGET) or not progress.reached(self._description.settings, budget):
                # A machine that kills processes, e.g. for memory, must not end a trial that progresses between two
                # kills.
                deaths = 0 if progress.step > progress_before.step else deaths + 1
                if deaths == MAX_DEATHS:
                    self._fail(job, f"its process ended {MAX_DEATHS} times with code {code}, without progress")
                    return None
                self._say(f"trial {job.number}: its process ended with code {code}; it is continued")

    def train_process(self, job: Job, budget: Optional[int]) -> int:
        """Runs `mxtrain train` for a trial, and sets `job.cause` to the cause of its end.

        Args:
            job: the trial.
            budget: epochs or steps of the run at the end of the rung; None = the whole run.

        Returns:
            The exit code of the process.

        Raises:
            KeyboardInterrupt: this process received a signal. It was passed on to the training process.
        """
        arguments = ["train", *self._description.arguments(job.values, job.run_dir, budget), *job.overrides]
        with ReportedCause() as reported:
            with append_to(self._folder.log(job.number), "ab") as output:
                # The run holds the lock of its trial by the descriptor of the claim, so it may outlive its worker.
                process: Union[subprocess.Popen[bytes], ForkedProcess, None] = self._runs.start(
                    arguments, environment(), reported.environment, output.fileno(), job.claim.fd
                )
                if process is None:
                    process = subprocess.Popen(
                        [*module_command("mxtrain"), *arguments],
                        cwd=self._working_folder,
                        env={**environment(), **reported.environment},
                        stdin=subprocess.DEVNULL,
                        stdout=output,
                        stderr=subprocess.STDOUT,
                        pass_fds=[job.claim.fd],
                        # Otherwise Ctrl-C would reach it twice: from the terminal and from here.
                        start_new_session=True,
                    )
            code = self._wait(process, job, budget)
        job.cause = reported.cause
        return code

    def _wait(self, process: Union[subprocess.Popen[bytes], ForkedProcess], job: Job, budget: Optional[int]) -> int:
        """Waits for the process of a trial, and shows its progress; returns its exit code."""
        try:
            with (
                self._display(self._title(job), job.run_dir, self._description, budget),
                forwarded_warnings(process.send_signal),
            ):
                return process.wait()
        except KeyboardInterrupt:
            process.terminate()
            try:
                process.wait(SHUTDOWN_S)
            except subprocess.TimeoutExpired:
                # It holds the lock of its trial, so no other worker starts the trial before it has saved.
                self._say(f"trial {job.number}: process {process.pid} still saves; it ends by itself")
            raise

    # Results.

    def _is_pruned(self, job: Job, progress: TrialProgress, budget: int) -> bool:
        """Reports the value at the end of a rung. Returns True if the pruner ended the trial.

        A trial without a value yet, or with one that is not finite, is not judged: pruners treat NaN as the worst.
        """
        values = progress.values(self._description)
        if values is None or not math.isfinite(values[0]):
            job.reported.append(budget)
            self._say(f"trial {job.number}: {self._description.objectives[0]} has no value yet, goes on")
            return False
        sentence = self._report(job, progress, budget)
        if not job.trial.should_prune():
            self._say(f"{sentence}, goes on")
            return False
        # Before the study knows it: a worker that is killed in between leaves a trial that another one prunes again.
        note_pruned(job.run_dir, f"pruned by pruner={self._description.settings.pruner} of the study; {sentence}")
        self._study.tell(job.trial, "PRUNED")
        self._say(f"{sentence}, pruned")
        return True

    def _report(self, job: Job, progress: TrialProgress, budget: int) -> str:
        """Stores the value at the end of a rung in Optuna's trial; returns a sentence about it.

        It is the best value so far, as the result of a trial is its best value; members of a population compare their
        current weights, and therefore the last value.
        """
        name = self._description.objectives[0]
        values = progress.values(self._description, last=self._is_population)
        value = math.nan if values is None else values[0]
        job.trial.report(value, budget)
        job.reported.append(budget)
        unit = "step" if self._description.settings.min_steps else "epoch"
        reached = f"{budget} {unit}{'s' if budget > 1 else ''}"
        sentence = f"trial {job.number}: {name}={value:.6g} after {reached}"
        if self._is_population:
            self._say(sentence)
        return sentence

    def _diverged(self, job: Job, cause: str, budget: Optional[int]) -> Optional[TrialProgress]:
        """Handles a non-finite loss. The trial fails, but a member of a population continues with other weights."""
        if self._is_population and budget is not None:
            return TrialProgress(exit_code=EXIT_BUDGET, cause=cause)
        self._fail(job, cause)
        return None

    def _finish(self, job: Job, progress: TrialProgress, rung: int) -> None:
        """Completes a trial that was trained to its end."""
        values = progress.values(self._description, last=self._is_population)
        if values is None or not all(map(math.isfinite, values)):
            self._fail(job, f"{', '.join(self._description.objectives)} was never measured as a finite number")
            return
        if not self._is_population:
            self._report_rest(job, values[0], rung)
        self._study.tell(job.trial, "COMPLETE", values)
        shown = ", ".join(f"{name}={value:.6g}" for name, value in zip(self._description.objectives, values))
        self._say(f"trial {job.number}: {shown}, finished after {progress.step:,} steps")

    def _report_rest(self, job: Job, value: float, rung: int) -> None:
        """Reports the final value for the remaining rungs, so that a run that stops early competes there, too."""
        while (budget := self._description.budget(rung)) is not None and rung < 64:
            if self._description.settings.min_steps:
                return  # the length of the whole run is not known in steps
            job.trial.report(value, budget)
            # Successive halving notes the rung of a trial only when it is asked.
            job.trial.should_prune()
            rung += 1

    def _fail(self, job: Job, cause: str) -> None:
        self._study.tell(job.trial, "FAIL", cause=cause)
        self._say(f"trial {job.number}: failed: {cause}")

    def _stop_study(self, job: Job) -> None:
        cause = f"trial {job.number}: {job.cause or 'its run was refused'}"
        with self._folder.lock:
            self._study.set_stop_cause(cause)
        raise StudyStopped(f"{cause}\nOnce that is mended, `mxtrain tune {self._folder.path}` goes on.")
