"""Dynamic batching: waiting requests for a model are computed as one batch, and each gets its rows of the outputs.

A batch waits for further requests at most as long as the last batch took to compute: for LeNet, a fixed wait of 2 ms
was longer than a whole request.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from functools import partial
from queue import SimpleQueue
from typing import Any, Callable, Deque, Iterator, List, Optional, Tuple

import numpy as np

from mxtrain.serving.errors import RequestError
from mxtrain.serving.logs import log_event
from mxtrain.serving.metrics import ServerMetrics
from mxtrain.serving.models import Arrays, ServedModel
from mxtrain.serving.spec import ServeSettings

Key = Tuple[Any, ...]


@dataclass
class WaitingRequest:
    """A request that waits for its batch.

    Attributes:
        inputs: validated input arrays.
        rows: number of samples.
        key: name and shape of each input, without the batch axis; only requests with equal keys share a batch.
        answer: future of the outputs.
        entered: time of arrival in seconds, on the clock of the event loop.
        queue_s: time in the queue, in seconds.
    """

    inputs: Arrays
    rows: int
    key: Key
    answer: asyncio.Future[Arrays]
    entered: float
    queue_s: float = field(default=0.0)


class Batcher:
    """Queues and computes the requests of one model. The computation runs in a separate thread.

    Args:
        model: model that computes.
        settings: settings of the server.
        metrics: metrics of the server.
    """

    def __init__(self, model: ServedModel, settings: ServeSettings, metrics: ServerMetrics) -> None:
        self.model, self._settings, self._metrics = model, settings, metrics
        self._waiting: Deque[WaitingRequest] = deque()
        self._wake_up: Optional[asyncio.Future[None]] = None  # set while the loop sleeps
        self._rows_to_wake = 1
        self._open = 0
        self._thread = ComputeThread(f"run-{model.name}")
        self._max_rows = settings.max_batch if model.is_batched else 1
        # Wait for further requests only if the last batch was shared: a single client would only be delayed.
        self._is_shared = False
        # Never wait longer than a batch takes: for a small network, waiting would cost more time than batching saves.
        self._compute_s = 0.0
        self._queue, self._waited, self._rows, self._computed = (
            metric.labels(model.name) for metric in (metrics.queue, metrics.waited, metrics.rows, metrics.computed)
        )
        self._task: Optional[asyncio.Task[None]] = None

    def start(self) -> None:
        """Starts to compute, on the running event loop."""
        self._task = asyncio.get_running_loop().create_task(self._work())

    async def close(self) -> None:
        """Stops the loop; the batch that is being computed is not answered."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        self._thread.close()

    @contextlib.contextmanager
    def admit(self) -> Iterator[None]:
        """Counts an open request, from its complete body to its answer.

        Raises:
            RequestError: there are already as many requests as `queue` allows.
        """
        if self._open >= self._settings.queue:
            raise RequestError(429, f"{self._open} requests wait for '{self.model.name}' already. Try again later.")
        self._open += 1
        self._queue.set(self._open)
        try:
            yield
        finally:
            self._open -= 1
            self._queue.set(self._open)

    async def compute(self, inputs: Arrays, rows: int) -> Tuple[Arrays, float]:
        """Computes the outputs for validated inputs.

        Args:
            inputs: input arrays.
            rows: number of samples.

        Returns:
            The outputs, and the seconds in the queue.

        Raises:
            RequestError: the network rejects the inputs, or there is no answer in time.
        """
        loop = asyncio.get_running_loop()
        now = loop.time()
        key = tuple([(spec.name, inputs[spec.name].shape[1:]) for spec in self.model.inputs])
        job = WaitingRequest(inputs, rows, key, loop.create_future(), now)
        self._waiting.append(job)
        if self._wake_up is not None and self._count_fitting() >= self._rows_to_wake:
            self._wake()
        timer = loop.call_later(self._settings.timeout_s, self._refuse_late, job)
        try:
            return await job.answer, job.queue_s
        finally:
            timer.cancel()

    def _refuse_late(self, job: WaitingRequest) -> None:
        if not job.answer.done():
            reason = f"there was no answer within {self._settings.timeout_s:g} s."
            job.answer.set_exception(RequestError(504, reason))

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            jobs = await self._collect()
            now = loop.time()
            for job in jobs:
                job.queue_s = now - job.entered
                self._waited.observe(job.queue_s)
            self._rows.observe(sum(job.rows for job in jobs))
            try:
                await self._answer(jobs)
            except Exception as error:  # a bug of mxtrain: continue with the next batches
                log_event("error", logging.ERROR, exc_info=True, model=self.model.name, error=str(error))
                for job in jobs:
                    if not job.answer.done():
                        job.answer.set_exception(RequestError(500, "the server has failed. Its log says more."))

    async def _collect(self) -> List[WaitingRequest]:
        """Returns the next batch: the oldest request, and others with the same input shapes."""
        self._drop_ended()
        while not self._waiting:
            await self._sleep(1, None)
            self._drop_ended()
        if self._is_shared and self._count_fitting() < self._max_rows:
            wait_s = min(self._settings.batch_wait_ms / 1000, self._compute_s)
            remaining_s = self._waiting[0].entered + wait_s - asyncio.get_running_loop().time()
            if remaining_s > 0:
                await self._sleep(self._max_rows, remaining_s)
                self._drop_ended()
                if not self._waiting:
                    return await self._collect()
        # The oldest request decides the shape of the batch, so a rare shape does not wait for ever.
        first = self._waiting.popleft()
        jobs, rows = [first], first.rows
        skipped: List[WaitingRequest] = []
        while self._waiting and rows < self._max_rows:
            job = self._waiting.popleft()
            fits = job.key == first.key and rows + job.rows <= self._max_rows
            (jobs if fits else skipped).append(job)
            rows += job.rows if fits else 0
        self._waiting.extendleft(reversed(skipped))  # requests that did not fit keep their order and go first next time
        self._is_shared = len(jobs) > 1 or bool(self._waiting)
        return jobs

    async def _sleep(self, rows: int, seconds: Optional[float]) -> None:
        """Sleeps until `rows` samples that can share a batch wait, or for `seconds`; None = no time limit.

        Requests that arrive meanwhile do not wake the loop, which would cost more than to read them.
        """
        loop = asyncio.get_running_loop()
        self._wake_up, self._rows_to_wake = loop.create_future(), rows
        timer = None if seconds is None else loop.call_later(seconds, self._wake)
        try:
            await self._wake_up
        finally:
            self._wake_up = None
            if timer is not None:
                timer.cancel()

    def _wake(self) -> None:
        if self._wake_up is not None and not self._wake_up.done():
            self._wake_up.set_result(None)

    def _count_fitting(self) -> int:
        key = self._waiting[0].key
        return sum(job.rows for job in self._waiting if job.key == key)

    def _drop_ended(self) -> None:
        """Removes requests whose clients no longer wait."""
        if any(job.answer.done() for job in self._waiting):
            self._waiting = deque(job for job in self._waiting if not job.answer.done())

    async def _answer(self, jobs: List[WaitingRequest]) -> None:
        try:
            outputs = await self._run(jobs)
        except RequestError as error:
            if len(jobs) == 1:
                if not jobs[0].answer.done():
                    jobs[0].answer.set_exception(error)
                return
            for job in jobs:  # compute each request alone, so that only the one with bad inputs fails
                await self._answer([job])
            return
        for job, job_outputs in zip(jobs, outputs):
            if not job.answer.done():
                job.answer.set_result(job_outputs)

    async def _run(self, jobs: List[WaitingRequest]) -> List[Arrays]:
        """Computes a batch and returns the outputs of each job.

        Raises:
            RequestError: the whole batch failed.
        """
        import onnxruntime

        loop = asyncio.get_running_loop()
        options = onnxruntime.RunOptions()
        options.log_severity_level = 4  # our log is JSON, and clients receive the error message
        is_stopped = threading.Event()

        def stop() -> None:
            is_stopped.set()
            # A thread cannot be killed, but onnxruntime leaves its run between two operators.
            options.terminate = True

        timer = loop.call_later(self._settings.timeout_s, stop)
        begin = time.perf_counter()
        try:
            return await self._thread.call(partial(self._compute, jobs, options))
        except RequestError:
            raise
        except Exception as error:  # onnxruntime's exceptions have no common base class
            raise refusal(error, is_stopped.is_set(), self._settings.timeout_s) from error
        finally:
            timer.cancel()
            self._compute_s = time.perf_counter() - begin
            self._computed.observe(self._compute_s)

    def _compute(self, jobs: List[WaitingRequest], options: Any) -> List[Arrays]:
        names = [spec.name for spec in self.model.outputs]
        inputs = jobs[0].inputs
        if len(jobs) > 1:
            inputs = {name: np.concatenate([job.inputs[name] for job in jobs]) for name in inputs}
        # Drift is measured in this thread, so that the event loop answers meanwhile.
        self._metrics.drift.observe(self.model.name, inputs)
        outputs = dict(zip(names, self.model.session.run(names, inputs, options)))
        if len(jobs) == 1:
            return [outputs]
        rows = sum(job.rows for job in jobs)
        if any(array.shape[:1] != (rows,) for array in outputs.values()):
            raise RequestError(500, "the network does not keep its samples apart.")  # `_answer` then retries each alone
        answers: List[Arrays] = []
        begin = 0
        for job in jobs:
            answers.append({name: array[begin : begin + job.rows] for name, array in outputs.items()})
            begin += job.rows
        return answers


class ComputeThread:
    """A thread that makes calls for the running event loop, one after the other.

    A `ThreadPoolExecutor` of one thread needs 104 us of processor time for a call that does nothing, this needs 42 us;
    LeNet computes one sample in 60 us.

    Args:
        name: name of the thread.
    """

    def __init__(self, name: str) -> None:
        self._calls: SimpleQueue[Optional[Tuple[Callable[[], Any], asyncio.Future[Any]]]] = SimpleQueue()
        threading.Thread(target=self._work, name=name).start()

    def call(self, function: Callable[[], Any]) -> asyncio.Future[Any]:
        """Makes a call in the thread; returns the future of its result."""
        answer = asyncio.get_running_loop().create_future()
        self._calls.put((function, answer))
        return answer

    def close(self) -> None:
        """Ends the thread after the calls that were made; does not wait for it."""
        self._calls.put(None)

    def _work(self) -> None:
        while (item := self._calls.get()) is not None:
            function, answer = item
            result, failure = None, None
            try:
                result = function()
            except Exception as error:
                failure = error
            with contextlib.suppress(RuntimeError):  # the loop was closed: the server ends
                answer.get_loop().call_soon_threadsafe(_settle, answer, result, failure)
            del item, function, answer, result, failure  # otherwise the last batch would stay in memory


def _settle(answer: asyncio.Future[Any], result: Any, failure: Optional[Exception]) -> None:
    if answer.done():  # it was cancelled
        return
    if failure is not None:
        answer.set_exception(failure)
    else:
        answer.set_result(result)


def refusal(error: Exception, is_stopped: bool, timeout_s: float) -> RequestError:
    """Returns the error for a client whose inputs made onnxruntime fail.

    Args:
        error: error of onnxruntime.
        is_stopped: True if the network was stopped after `timeout_s`.
        timeout_s: time limit of an answer in seconds.
    """
    if is_stopped:
        return RequestError(504, f"the network took longer than {timeout_s:g} s.")
    first_line = str(error).splitlines()[0] if str(error) else type(error).__name__
    # Lack of memory has no exception of its own: messages say "allocate", "Allocation" or "allocating".
    if "llocat" in first_line:
        return RequestError(503, "there is not enough memory for this request.")
    return RequestError(422, f"the network refuses these inputs: {first_line[:300]}")
