"""Handles inference requests: reads the body, computes, and encodes the answer."""

from __future__ import annotations

import asyncio
import contextlib
from concurrent.futures import ThreadPoolExecutor
from typing import (
    TYPE_CHECKING,
    Any,
    AsyncIterator,
    Callable,
    Dict,
    Iterator,
    List,
    Mapping,
    Optional,
    Sequence,
    Tuple,
    Type,
    TypeVar,
)

import numpy as np
from starlette.requests import Request

from mxtrain.errors import did_you_mean
from mxtrain.serving.answers import describe_sample, predicted_class
from mxtrain.serving.batching import Batcher
from mxtrain.serving.errors import RequestError
from mxtrain.serving.generation import Generation, Generations
from mxtrain.serving.metrics import MAX_CLASSES, ServerMetrics
from mxtrain.serving.models import Arrays, ServedModel, row_of
from mxtrain.serving.protocol import (
    HEADER_LENGTH,
    TEXT_INPUT,
    GenerateCall,
    encode_answer,
    from_json,
    parse_generate,
    parse_infer,
    parse_json,
    refuse_long_json,
)
from mxtrain.serving.readers import CSV_TYPE, JSON_LINES_TYPES, JSON_TYPE, TSV_TYPE, BodyLimits, ReadBody
from mxtrain.serving.uploads import FORM_TYPE, Upload, file_of_form, file_of_json, hint_for, media_type_of

if TYPE_CHECKING:
    from mxtrain.serving.spec import ServeSettings

T = TypeVar("T")
MB = 1_000_000
SMALL_BODY = 1 << 14
"""Size in bytes below which bodies are parsed on the event loop; others are parsed in a thread."""
DECODING_THREADS = 2


class Service:
    """All models of a server.

    Args:
        models: models to serve.
        settings: settings of the server.

    Attributes:
        is_draining: True if the server is about to end, so that load balancers should send no new requests.
    """

    def __init__(self, models: Sequence[ServedModel], settings: ServeSettings) -> None:
        self.settings = settings
        self.metrics = ServerMetrics(models)
        self.batchers = {model.name: Batcher(model, settings, self.metrics) for model in models}
        self.generations = Generations(settings, self.metrics)
        self.is_draining = False
        self._max_json = int(settings.max_json_mb * MB)
        self._bodies = PendingBodies(settings.max_pending_mb * MB, self.metrics.pending)
        self._threads = ThreadPoolExecutor(DECODING_THREADS, thread_name_prefix="decode")
        self.metrics.ready.set(1)

    def start(self) -> None:
        """Starts all batchers, on the running event loop."""
        for batcher in self.batchers.values():
            batcher.start()

    async def close(self) -> None:
        """Ends the threads."""
        for batcher in self.batchers.values():
            await batcher.close()
        self.generations.close()
        self._threads.shutdown(wait=False)

    def drain(self) -> None:
        """Makes the readiness route fail, so that load balancers send no further requests."""
        self.is_draining = True
        self.metrics.ready.set(0)

    def batcher_of(self, name: str, version: str = "1") -> Batcher:
        """Returns the batcher of a model.

        Raises:
            RequestError: there is no such model or version.
        """
        if name not in self.batchers:
            raise RequestError(
                404,
                f"there is no model '{name[:100]}'.{did_you_mean(name[:100], self.batchers)} "
                f"Models: {', '.join(self.batchers)}.",
            )
        if version != "1":
            raise RequestError(404, f"'{name}' has version 1 only, not '{version[:100]}'.")
        return self.batchers[name]

    async def infer(self, batcher: Batcher, request: Request) -> Tuple[bytes, Dict[str, str]]:
        """Answers `infer`. Returns the body and the headers of the answer."""
        with self._hold_bytes() as held_bytes:
            header_length = request.headers.get(HEADER_LENGTH)
            body = await self._read_body(request, held_bytes, is_json=header_length is None)
            with batcher.admit():
                call = await self._in_thread(len(body), parse_infer, body, header_length, batcher.model, self._max_json)
                outputs = await self._compute(batcher, call.inputs, request)
                size = sum(array.nbytes for array in outputs.values())
                return await self._in_thread(size, encode_answer, batcher.model, call, outputs)

    async def predict(self, batcher: Batcher, request: Request) -> Dict[str, Any]:
        """Answers `predict`. Returns the prediction of one sample, or a list of several under `predictions`."""
        model, header = batcher.model, request.headers.get("content-type", "")
        media_type = media_type_of(header, model)
        with self._hold_bytes() as held_bytes:
            # Pairs of texts are a table as well.
            is_json = media_type in (JSON_TYPE, CSV_TYPE, TSV_TYPE, *JSON_LINES_TYPES)
            body = await self._read_body(request, held_bytes, is_json)
            with batcher.admit():
                # Decoding an image takes long, whatever the size of its file.
                size = SMALL_BODY if media_type in (FORM_TYPE, *model.read_types) else len(body)
                read = await self._in_thread(size, read_sample, body, header, model, self.settings.max_pixels)
                for column, count in read.unseen.items():
                    self.metrics.unseen.labels(model.name, column).inc(count)
                answers = await self._answers(batcher, read, request)
                if read.others != ():  # compared and not tested: an iterator is always true
                    answers += await self._answers_of_others(batcher, iter(read.others), request)
        if 0 < len(model.class_names) <= MAX_CLASSES:
            for answer in answers:
                if predicted := predicted_class(model, answer):
                    self.metrics.predicted.labels(model.name, predicted).inc()
        return answers[0] if len(answers) == 1 else {"predictions": answers}

    async def _answers(self, batcher: Batcher, read: ReadBody, request: Request) -> List[Dict[str, Any]]:
        """Returns the answers of the samples that were read at once."""
        outputs = await self._compute_all(batcher, read, request)
        # Encoding the masks of a large image takes long, so samples of files are described in a thread.
        size = 0 if read.about is None else SMALL_BODY
        samples = samples_of(read, outputs, batcher.model)
        return [await self._in_thread(size, describe_sample, batcher.model, *one, read.about) for one in samples]

    async def _answers_of_others(
        self, batcher: Batcher, others: Iterator[ReadBody], request: Request
    ) -> List[Dict[str, Any]]:
        """Returns the answers of `ReadBody.others`, one after another: outputs of all slices would fill the memory."""
        answers: List[Dict[str, Any]] = []
        try:
            with TimeLimit(self.settings.timeout_s):
                while (read := await self._in_thread(SMALL_BODY, next, others, None)) is not None:
                    answers += await self._answers(batcher, read, request)
        except asyncio.TimeoutError as error:
            raise RequestError(504, f"there was no answer within {self.settings.timeout_s:g} s.") from error
        return answers

    async def generate(self, batcher: Batcher, request: Request) -> Dict[str, Any]:
        """Answers `generate`. Returns the whole text."""
        pieces = []
        async with self.generation(batcher, request, is_stream=False) as (call, generation):
            async for piece in generation.pieces():
                pieces.append(piece)
        text = "".join(piece.text for piece in pieces)
        return text_event(batcher.model, call, text, generation.tokens, pieces[-1].finish_reason)

    @contextlib.asynccontextmanager
    async def generation(
        self, batcher: Batcher, request: Request, is_stream: bool
    ) -> AsyncIterator[Tuple[GenerateCall, Generation]]:
        """Reads a request for text, and ends its generation when the context ends or the client disconnects.

        Raises:
            RequestError: the request is invalid, the model writes no text, or too many texts are being written.
        """
        model = batcher.model
        if model.generator is None:
            raise RequestError(
                400,
                f"the model '{model.name}' writes no text: its folder has no step.onnx of a "
                "language model or a translation. Use predict or infer.",
                closes=True,
            )
        fields = request.scope["mxtrain.fields"]
        with contextlib.ExitStack() as stack:
            body = await self._read_body(request, stack.enter_context(self._hold_bytes()), is_json=True)
            call: GenerateCall = await self._in_thread(
                len(body), parse_generate, body, model.generator, is_stream, self.settings.max_tokens
            )
            generation = stack.enter_context(self.generations.begin(model, call))
            # After the body, the next message says that the client has disconnected.
            watch = asyncio.ensure_future(request.receive())
            watch.add_done_callback(lambda _: generation.stop(RequestError(499, "the client has disconnected.")))
            try:
                yield call, generation
            finally:
                watch.cancel()
                await generation.close()
                fields.update(tokens=generation.tokens)
                if generation.first_token_s is not None:
                    fields.update(first_token_ms=round(generation.first_token_s * 1000, 2))

    async def _compute(self, batcher: Batcher, inputs: Arrays, request: Request) -> Arrays:
        rows = batcher.model.validate(inputs)
        outputs, queue_s = await batcher.compute(inputs, rows)
        fields = request.scope["mxtrain.fields"]
        fields["rows"] = fields.get("rows", 0) + rows
        fields["queue_ms"] = round(fields.get("queue_ms", 0) + queue_s * 1000, 2)
        return outputs

    async def _compute_all(self, batcher: Batcher, read: ReadBody, request: Request) -> Arrays:
        """Computes the outputs for all inputs of a body, within the time for one answer."""
        if read.rest == ():  # compared and not tested: an iterator is always true
            return await self._compute(batcher, read.inputs, request)
        found: List[Arrays] = []
        inputs: Optional[Arrays] = read.inputs
        # Each part waits in the queue like other requests, so that one large request does not block all clients.
        rest = iter(read.rest)
        try:
            with TimeLimit(self.settings.timeout_s):
                while inputs is not None:
                    found.append(await self._compute(batcher, inputs, request))
                    inputs = await self._in_thread(SMALL_BODY, next, rest, None)
        except asyncio.TimeoutError as error:
            raise RequestError(504, f"there was no answer within {self.settings.timeout_s:g} s.") from error
        return {name: np.concatenate([one[name] for one in found]) for name in found[0]}

    async def _in_thread(self, size: int, function: Callable[..., T], *arguments: Any) -> T:
        """Calls a function in a thread if it processes at least `SMALL_BODY` bytes, otherwise on the event loop."""
        if size < SMALL_BODY:
            return function(*arguments)
        return await asyncio.get_running_loop().run_in_executor(self._threads, function, *arguments)

    async def _read_body(self, request: Request, held_bytes: HeldBytes, is_json: bool) -> bytes:
        """Reads the body and counts its bytes with `held_bytes`.

        Args:
            request: the request.
            held_bytes: bytes of the body.
            is_json: True if the whole body is JSON or a table.

        Raises:
            RequestError: the body is too large, too slow or compressed, or the client has disconnected.
        """
        limit = int(self.settings.max_body_mb * MB)
        if request.headers.get("content-encoding", "identity").lower() != "identity":
            raise RequestError(415, "compressed bodies are not read: leave Content-Encoding out.", closes=True)
        length = int(request.headers.get("content-length", "0"))
        parts: List[bytes] = []
        size, is_open = 0, True
        try:
            with TimeLimit(self.settings.timeout_s):
                while is_open:
                    message = await request.receive()
                    if message["type"] == "http.disconnect":
                        # nginx's code for clients that have left; only the log shows it.
                        raise RequestError(499, "the client has closed the connection.", closes=True)
                    part: bytes = message.get("body", b"")
                    is_open = message.get("more_body", False)
                    size += len(part)
                    # A body that is announced as too long is refused before it is read.
                    largest = max(size, length)
                    if largest > limit or is_json and largest > self._max_json:
                        if is_json and self._max_json < limit:
                            refuse_long_json(largest, self._max_json)
                        raise RequestError(413, f"the body has more than {limit:,} bytes.", closes=True)
                    held_bytes.add(len(part))
                    parts.append(part)
        except asyncio.TimeoutError as error:
            reason = f"the body did not arrive within {self.settings.timeout_s:g} s."
            raise RequestError(408, reason, closes=True) from error
        request.scope["mxtrain.fields"].update(bytes=size)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _hold_bytes(self) -> HeldBytes:
        return HeldBytes(self._bodies)


class PendingBodies:
    """Counts the bytes of all bodies in memory, so that many clients together cannot exhaust it.

    Args:
        limit: largest number of bytes.
        gauge: Prometheus gauge of the bytes.
    """

    def __init__(self, limit: float, gauge: Any) -> None:
        self._limit, self._gauge, self._bytes = limit, gauge, 0

    def add(self, size: int) -> None:
        """Adds the bytes of a body, or removes them if `size` is negative.

        Raises:
            RequestError: the limit would be exceeded.
        """
        if size > 0 and self._bytes + size > self._limit:
            raise RequestError(503, "too many bodies are in memory. Try again later.", closes=True)
        self._bytes += size
        self._gauge.set(self._bytes)


class HeldBytes:
    """Counts the bytes of one body among the pending ones until the context ends.

    Args:
        bodies: bytes of all bodies.
    """

    def __init__(self, bodies: PendingBodies) -> None:
        self._bodies, self._size = bodies, 0

    def add(self, size: int) -> None:
        """Adds bytes that have arrived. Raises: see `PendingBodies.add`."""
        self._bodies.add(size)
        self._size += size

    def __enter__(self) -> HeldBytes:
        return self

    def __exit__(self, *exception: object) -> None:
        self._bodies.add(-self._size)


def text_event(
    model: ServedModel, call: GenerateCall, text: str, num_tokens: int = 0, finish_reason: str = ""
) -> Dict[str, Any]:
    """Returns an answer with text, or an event of a stream; the last one has the number of tokens and the reason."""
    event: Dict[str, Any] = {"model_name": model.name, "model_version": "1", "text_output": text}
    if call.id is not None:
        event["id"] = call.id
    return {**event, "finish_reason": finish_reason, "tokens": num_tokens} if finish_reason else event


class TimeLimit:
    """Equivalent of `asyncio.timeout`, which Python 3.9 and 3.10 do not have. It is entered by a plain `with`.

    Args:
        seconds: time after which the task is interrupted; the context then raises `asyncio.TimeoutError`.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds, self._is_over = seconds, False

    def __enter__(self) -> None:
        self._task = asyncio.current_task()
        self._timer = asyncio.get_running_loop().call_later(self._seconds, self._end)

    def _end(self) -> None:
        assert self._task is not None
        self._is_over = True
        self._task.cancel()

    def __exit__(self, kind: Optional[Type[BaseException]], *exception: object) -> None:
        self._timer.cancel()
        if self._is_over and kind is asyncio.CancelledError:
            raise asyncio.TimeoutError from None


def read_sample(body: bytes, header: str, model: ServedModel, max_pixels: int) -> ReadBody:
    """Reads the body of `predict`: one sample by the reader of the model, or arrays of any number of samples.

    Args:
        body: body of the request.
        header: value of its Content-Type.
        model: model that the request is for.
        max_pixels: pixels of an image.

    Raises:
        RequestError: the body is invalid.
    """
    upload = Upload(body, media_type_of(header, model))
    if upload.media_type == FORM_TYPE:
        upload = file_of_form(body, header, model)
    values = parse_json(upload.content) if upload.media_type == JSON_TYPE else {}
    refuse_text_input(values, model)
    upload = file_of_json(values, model) or upload
    # A column of a table may be called like an input, but its cells are no lists.
    has_arrays = any(isinstance(values.get(spec.name), list) for spec in model.inputs)
    if upload.media_type in model.read_types and not has_arrays:
        assert model.reader is not None
        try:
            return model.reader.read(*upload, BodyLimits(max_pixels, model.max_joint_rows))
        except RequestError as error:
            raise RequestError(error.status, error.message + hint_for(header), error.closes) from error
    return ReadBody(_named_arrays(values, model))


def samples_of(read: ReadBody, outputs: Arrays, model: ServedModel) -> List[Tuple[Arrays, Arrays]]:
    """Returns inputs and outputs of each sample of a body. A file is one sample, even if it has several rows."""
    rows = next(iter(read.inputs.values())).shape[0] if read.about is None and model.max_joint_rows > 1 else 1
    if rows == 1:
        return [(read.inputs, outputs)]
    return [(row_of(read.inputs, row), row_of(outputs, row)) for row in range(rows)]


def refuse_text_input(values: Mapping[str, Any], model: ServedModel) -> None:
    """Raises a `RequestError` if the body of `predict` is one of `generate`, for a model that writes texts."""
    if model.generator is not None and TEXT_INPUT in values:
        path = f"/v2/models/{model.name}/generate"
        raise RequestError(
            400,
            f"{TEXT_INPUT} is for generate: send it to {path} or {path}_stream. predict takes "
            f"arrays by the names {', '.join(spec.name for spec in model.inputs)}.",
        )


def _named_arrays(values: Mapping[str, Any], model: ServedModel) -> Arrays:
    """Converts a JSON object of input name -> nested list, in the same format as an exported folder's `predict.py`."""
    arrays: Arrays = {}
    specs = {spec.name: spec for spec in model.inputs}
    for name, value in values.items():
        spec = specs.get(name)
        if spec is None:
            arrays[name] = np.zeros(0, np.float32)  # `ServedModel.validate` rejects unknown names
            continue
        shape: List[int] = []
        inner = value
        while isinstance(inner, list) and len(shape) < len(spec.dims):
            shape.append(len(inner))
            inner = inner[0] if inner else None
        if not spec.dims and not isinstance(value, list):
            value = [value]
        count = int(np.prod(shape, dtype=object))
        arrays[name] = from_json(value, spec, count).reshape(shape)
    return arrays
