"""Answers as server-sent events.

Source: https://html.spec.whatwg.org/multipage/server-sent-events.html, and Triton's "Generate extension".
"""

from __future__ import annotations

import asyncio
import json
from typing import Any, Dict

from fastapi import Request, Response
from fastapi.responses import JSONResponse

from mxtrain.serving.batching import Batcher
from mxtrain.serving.errors import RequestError
from mxtrain.serving.service import Service, TimeLimit, text_event

EVENTS = "text/event-stream"
GRACE_S = 5.0
"""Time after the end of a generation in which a slow client may read the rest."""


class EventStream(Response):
    """Writes a text and sends each piece as an event.

    The status is sent with the first piece, so an error before it has a status of its own; a later one is an event.

    Args:
        service: writes the text.
        batcher: of the model.
        request: the request.
    """

    def __init__(self, service: Service, batcher: Batcher, request: Request) -> None:
        # Proxies must neither store nor collect events.
        super().__init__(headers={"cache-control": "no-store", "x-accel-buffering": "no"}, media_type=EVENTS)
        del self.headers["content-length"]
        self._service, self._batcher, self._request = service, batcher, request

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        has_begun = False

        async def send_event(event: Dict[str, Any], is_last: bool) -> None:
            nonlocal has_begun
            if not has_begun:
                has_begun = True
                await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            data = f"data: {json.dumps(event, ensure_ascii=False)}\n\n".encode()
            await send({"type": "http.response.body", "body": data, "more_body": not is_last})

        settings = self._service.settings
        try:
            with TimeLimit(2 * settings.timeout_s + GRACE_S):  # of the body, and of the generation
                try:
                    await self._send_pieces(send_event)
                except RequestError as error:
                    if not has_begun:
                        await error_answer(self._request, error)(scope, receive, send)
                        return
                    scope["mxtrain.fields"]["error"] = error.message
                    await send_event({"model_name": self._batcher.model.name, "error": error.message}, True)
        except asyncio.TimeoutError:
            scope["mxtrain.fields"]["error"] = "the client did not read its events."
            scope["mxtrain.abort"]()
            await asyncio.sleep(0)  # lets the connection end, which uvicorn would otherwise report as unfinished

    async def _send_pieces(self, send_event: Any) -> None:
        model = self._batcher.model
        async with self._service.generation(self._batcher, self._request, is_stream=True) as (call, generation):
            async for piece in generation.pieces():
                is_last = bool(piece.finish_reason)
                if piece.text or is_last:
                    event = text_event(model, call, piece.text, generation.tokens, piece.finish_reason)
                    await send_event(event, is_last)
                    # Pieces may wait: without a turn of the loop, a lost connection would be noticed after all of them.
                    await asyncio.sleep(0)


def error_answer(request: Request, error: RequestError) -> Response:
    """Returns the answer of a request that is refused."""
    headers = {"connection": "close"} if error.closes else {}
    if error.status in (429, 503):
        headers["retry-after"] = "1"
    request.scope["mxtrain.fields"]["error"] = error.message
    return JSONResponse({"error": error.message}, error.status, headers)
