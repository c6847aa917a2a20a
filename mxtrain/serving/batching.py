"""Dynamic batching: waiting requests for a model are computed as one batch, and each gets its rows of the outputs."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Deque, Iterator, List, Optional, Tuple

import numpy as np

from mxtrain.serving.errors import RequestError
from mxtrain.serving.logs import log_event
from mxtrain.serving.metrics import ServerMetrics
from mxtrain.serving.models import Arrays, ServedModel
from mxtrain.serving.settings import ServeSettings

Key = Tuple[Any, ...]


@dataclass
class WaitingRequest:
    """A request.

    Attributes:
        inputs: validated input arrays.
        rows: number of samples.
        key: input shapes without the batch axis; only requests with equal keys share a batch.
        deadline: time limit, on the clock of the event loop.
        answer: future of the outputs.
        entered: time of arrival, on the clock of the event loop.
        queue_s: seconds in the queue.
    """

    inputs: Arrays
    rows: int
    key: Key
    deadline: float
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
        self._arrived = asyncio.Event()
        self._open = 0
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"run-{model.name}")
        self._most_rows = settings.max_batch if model.is_batched else 1
        # Wait for further requests only if the last batch was shared: a single client would only be delayed.
        self._is_shared = False
        self._queue, self._waited, self._rows, self._computed = (
            metric.labels(model.name) for metric in (metrics.queue, metrics.waited, metrics.rows, metrics.computed)
        )
        self._task: Optional[asyncio.Task[None]] = None

    def start(self) -> None:
        """Starts to compute, on the running event loop."""
        self._task = asyncio.get_running_loop().create_task(self._work())

    async def close(self) -> None:
        """Stops the loop; the batch that is being computed is not answered any more."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        self._thread.shutdown(wait=False)

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
        key = tuple((name, one.shape[1:]) for name, one in sorted(inputs.items()))
        job = WaitingRequest(inputs, rows, key, now + self._settings.timeout_s, loop.create_future(), now)
        self._waiting.append(job)
        self._arrived.set()
        try:
            return await asyncio.wait_for(job.answer, self._settings.timeout_s), job.queue_s
        except asyncio.TimeoutError as error:
            raise RequestError(504, f"there was no answer within {self._settings.timeout_s:g} s.") from error

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
        loop = asyncio.get_running_loop()
        while not self._waiting:
            self._arrived.clear()
            await self._arrived.wait()
            self._drop_ended()
        until = self._waiting[0].entered + self._settings.batch_wait_ms / 1000
        while self._is_shared and self._count_fitting() < self._most_rows and (left := until - loop.time()) > 0:
            self._arrived.clear()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._arrived.wait(), left)
            self._drop_ended()
            if not self._waiting:
                return await self._collect()
        self._drop_ended()
        if not self._waiting:
            return await self._collect()
        first = self._waiting.popleft()
        jobs, rows = [first], first.rows
        kept: List[WaitingRequest] = []
        while self._waiting and rows < self._most_rows:
            job = self._waiting.popleft()
            fits = job.key == first.key and rows + job.rows <= self._most_rows
            (jobs if fits else kept).append(job)
            rows += job.rows if fits else 0
        self._waiting.extendleft(reversed(kept))  # requests that did not fit keep their order and go first next time
        self._is_shared = len(jobs) > 1 or bool(self._waiting)
        return jobs

    def _count_fitting(self) -> int:
        key = self._waiting[0].key
        return sum(job.rows for job in self._waiting if job.key == key)

    def _drop_ended(self) -> None:
        """Removes requests whose clients do not wait any more."""
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
        for job, own in zip(jobs, outputs):
            if not job.answer.done():
                job.answer.set_result(own)

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
            options.terminate = True

        timer = loop.call_later(self._settings.timeout_s, stop)
        begin = time.perf_counter()
        try:
            return await loop.run_in_executor(self._thread, self._compute, jobs, options)
        except RequestError:
            raise
        except Exception as error:  # of onnxruntime, which has no common class for them
            raise refusal(error, is_stopped.is_set(), self._settings.timeout_s) from error
        finally:
            timer.cancel()
            self._computed.observe(time.perf_counter() - begin)

    def _compute(self, jobs: List[WaitingRequest], options: Any) -> List[Arrays]:
        names = [spec.name for spec in self.model.outputs]
        inputs = jobs[0].inputs
        if len(jobs) > 1:
            inputs = {name: np.concatenate([job.inputs[name] for job in jobs]) for name in inputs}
        self._metrics.drift.observe(self.model.name, inputs)
        found = dict(zip(names, self.model.session.run(names, inputs, options)))
        if len(jobs) == 1:
            return [found]
        rows = sum(job.rows for job in jobs)
        if any(one.shape[:1] != (rows,) for one in found.values()):
            raise RequestError(500, "the network does not keep its samples apart.")  # `_answer` then retries each alone
        answers: List[Arrays] = []
        begin = 0
        for job in jobs:
            answers.append({name: one[begin : begin + job.rows] for name, one in found.items()})
            begin += job.rows
        return answers


def refusal(error: Exception, is_stopped: bool, timeout_s: float) -> RequestError:
    """Returns the error for a client whose inputs made onnxruntime fail.

    Args:
        error: of onnxruntime.
        is_stopped: True if the network was stopped after `timeout_s`.
        timeout_s: seconds for an answer.
    """
    if is_stopped:
        return RequestError(504, f"the network took longer than {timeout_s:g} s.")
    said = str(error).splitlines()[0] if str(error) else type(error).__name__
    if "llocat" in said:
        return RequestError(503, "there is not enough memory for this request.")
    return RequestError(422, f"the network refuses these inputs: {said[:300]}")
