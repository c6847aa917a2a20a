"""Text generation. A thread generates the tokens of a request, and stops early when the client has disconnected.

One thread for each text, and no batches of texts: caches of different lengths would need padding and masks in the
exported step, and a sampled text would depend on the rounding of other clients. A fixed number of threads bounds
memory; further requests get 429.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, AsyncIterator, Dict, Iterator, Optional, Set, Union

import numpy as np

from mxtrain.serving.batching import refusal
from mxtrain.serving.errors import RequestError
from mxtrain.serving.generators import TextPiece
from mxtrain.serving.logs import log_event
from mxtrain.serving.metrics import ServerMetrics
from mxtrain.serving.models import Arrays, ServedModel

if TYPE_CHECKING:
    from mxtrain.serving.protocol import GenerateCall
    from mxtrain.serving.spec import ServeSettings


SCORES = "scores"
"""Output of a step."""


class Generation:
    """One text that is being written. It runs the parts of the model as an `ExportedFolder`, until it is stopped.

    Args:
        model: model that writes.
        call: the request.
        threads: runs the generation.
        timeout_s: seconds after which it is stopped.
        metrics: metrics of the server.

    Attributes:
        signature: content of signature.json.
        tokens: number of tokens that were written.
        first_token_s: seconds until the first token; None = none yet.
    """

    def __init__(
        self,
        model: ServedModel,
        call: GenerateCall,
        threads: ThreadPoolExecutor,
        timeout_s: float,
        metrics: ServerMetrics,
    ) -> None:
        import onnxruntime

        self.signature: Dict[str, Any] = model.signature
        self.tokens = 0
        self.first_token_s: Optional[float] = None
        self._model, self._call, self._timeout_s, self._metrics = model, call, timeout_s, metrics
        self._options = onnxruntime.RunOptions()
        self._options.log_severity_level = 4  # our log is JSON, and clients receive the error message
        self._reason: Optional[RequestError] = None
        self._begin = time.perf_counter()
        self._loop = asyncio.get_running_loop()
        # The queue has no limit: `max_tokens` bounds it, and the thread never waits for a slow client.
        self._queue: asyncio.Queue[Union[TextPiece, Exception]] = asyncio.Queue()
        late = RequestError(504, f"the text took longer than {timeout_s:g} s.")
        self._timer = self._loop.call_later(timeout_s, self.stop, late)
        self._work = self._loop.run_in_executor(threads, self._write)

    def run(self, inputs: Arrays, part: str = "") -> Arrays:
        """See `ExportedFolder.run`.

        Raises:
            RequestError: the generation was stopped, or the network fails.
        """
        session = self._model.parts.sessions[part]
        names = [output.name for output in session.get_outputs()]
        if self._reason is not None:
            raise self._reason
        try:
            outputs = dict(zip(names, session.run(names, inputs, self._options)))
        except Exception as error:  # onnxruntime's exceptions have no common base class
            raise self._reason or refusal(error, False, self._timeout_s) from error
        # Among NaN there is no best token: a search would choose an arbitrary one without an error.
        if SCORES in outputs and np.isnan(outputs[SCORES]).any():
            raise RequestError(422, "the scores of the network are not finite for this text.")
        return outputs

    def read(self, name: str) -> bytes:
        """See `ExportedFolder.read`."""
        return self._model.parts.read(name)

    def read_arrays(self, name: str) -> Arrays:
        """See `ExportedFolder.read_arrays`."""
        return self._model.parts.read_arrays(name)

    def stop(self, reason: RequestError) -> None:
        """Ends the generation at the next token, or within it; `pieces` raises the first reason."""
        self._reason = self._reason or reason
        self._options.terminate = True

    async def pieces(self) -> AsyncIterator[TextPiece]:
        """Yields the pieces of text.

        Raises:
            RequestError: the generation failed or was stopped.
        """
        while True:
            item = await self._queue.get()
            if isinstance(item, RequestError):
                raise item
            if isinstance(item, Exception):  # a bug of mxtrain, or a damaged folder
                error = str(item)
                log_event("error", logging.ERROR, exc_info=item, model=self._model.name, error=error)
                raise RequestError(500, "the server has failed. Its log says more.") from item
            self.tokens += item.num_tokens
            self._metrics.tokens.labels(self._model.name).inc(item.num_tokens)
            if item.num_tokens and self.first_token_s is None:
                self.first_token_s = time.perf_counter() - self._begin
                self._metrics.first_token.labels(self._model.name).observe(self.first_token_s)
            yield item
            if item.finish_reason:
                return

    async def close(self) -> None:
        """Stops the generation and waits for its thread."""
        self._timer.cancel()
        self.stop(RequestError(503, "the server ends."))
        # A text counts until its thread is free: otherwise the next one would wait in the pool, unnoticed.
        await asyncio.wait([self._work])

    def _write(self) -> None:
        assert self._model.generator is not None
        try:
            for piece in self._model.generator.generate(self, self._call.text, self._call.parameters):
                self._put(piece)
                if self._reason is not None:
                    raise self._reason
        except Exception as error:
            self._put(error)

    def _put(self, item: Union[TextPiece, Exception]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop was closed: the server ends
            self._loop.call_soon_threadsafe(self._queue.put_nowait, item)


class Generations:
    """All texts that a server is writing.

    Args:
        settings: settings of the server.
        metrics: metrics of the server.
    """

    def __init__(self, settings: ServeSettings, metrics: ServerMetrics) -> None:
        self._settings, self._metrics = settings, metrics
        self._threads = ThreadPoolExecutor(settings.generations, thread_name_prefix="generate")
        self._open: Set[Generation] = set()

    @contextlib.contextmanager
    def begin(self, model: ServedModel, call: GenerateCall) -> Iterator[Generation]:
        """Starts a generation, and counts it until the context ends, before which it must be closed.

        Raises:
            RequestError: there are already as many as `generations` allows.
        """
        if len(self._open) >= self._settings.generations:
            raise RequestError(429, f"{len(self._open)} texts are being written already. Try again later.")
        generation = Generation(model, call, self._threads, self._settings.timeout_s, self._metrics)
        active = self._metrics.generations.labels(model.name)
        self._open.add(generation)
        active.inc()
        try:
            yield generation
        finally:
            self._open.discard(generation)
            active.dec()

    def close(self) -> None:
        """Stops all generations and ends the threads."""
        for generation in self._open:
            generation.stop(RequestError(503, "the server ends."))
        self._threads.shutdown(wait=False)
