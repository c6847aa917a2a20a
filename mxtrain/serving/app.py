"""Routes of the inference server, and the middleware for all of them: token, timing, log and metrics.

Reasons: docs/decisions/0105-serving.md.
"""

from __future__ import annotations

import hmac
import json
import logging
import random
import re
import time
from importlib import resources
from typing import Any, Awaitable, Callable, Dict, MutableMapping, Sequence, Tuple

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from mxtrain import __version__
from mxtrain.serving.errors import RequestError
from mxtrain.serving.logs import log_event
from mxtrain.serving.schema import (
    GENERATE_BODY,
    INFER_BODY,
    ErrorBody,
    GenerateAnswer,
    InferAnswer,
    ModelBody,
    ServerBody,
)
from mxtrain.serving.service import Service
from mxtrain.serving.streams import EVENTS, EventStream, error_answer
from mxtrain.serving.uploads import FORM_TYPE

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

OPEN_PATHS = ("/", "/v2/health/live", "/v2/health/ready", "/openapi.json")
"""Paths without a token; none of them reveals anything about a model."""
HEALTH = "/v2/health/"
PAGE = "page.html"
_MODEL_CALL = re.compile(r"/v2/models/([^/]+)/(infer|predict|generate|generate_stream)")
_REQUEST_ID = re.compile(r"[\x21-\x7e]{1,100}")
_ERRORS: Dict[int, str] = {
    400: "The request is wrong.",
    401: "The token is missing or wrong.",
    404: "There is no such model or version.",
    408: "The body did not arrive in time.",
    413: "The request is too large.",
    415: "The content type is not read.",
    422: "The network refuses these inputs.",
    429: "Too many requests wait.",
    503: "The server cannot take it now.",
    504: "The network took too long.",
}


def build_app(service: Service, token: str) -> Any:
    """Builds the ASGI application.

    Args:
        service: handles the requests.
        token: bearer token that clients must send; empty = none.
    """
    app = FastAPI(
        title="mxtrain serve",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        openapi_url="/openapi.json",
        description="Open Inference Protocol v2, and predictions for files.",
    )
    _add_server_routes(app, service)
    _add_model_routes(app, service)
    _describe_names(app, list(service.batchers))
    app.add_exception_handler(HTTPException, _refuse_http)
    app.add_exception_handler(RequestError, _refuse)
    return RequestMiddleware(app, service, token)


def _describe_names(app: FastAPI, names: Sequence[str]) -> None:
    """Adds the names of the models to the OpenAPI description."""
    described = app.openapi()  # FastAPI caches and serves this object
    for path in described["paths"].values():
        for call in path.values():
            for parameter in call.get("parameters", ()):
                if parameter["name"] == "name":
                    parameter["schema"]["enum"] = list(names)


async def _refuse_http(request: Request, error: Any) -> Response:
    message = {
        404: "there is nothing at this path. /openapi.json lists all.",
        405: f"{request.method} is not allowed here.",
    }.get(error.status_code, str(error.detail))
    # Close the connection: a client that sends a body to a wrong path would otherwise continue to send it.
    headers = {**(error.headers or {}), "connection": "close"}
    return JSONResponse({"error": message}, error.status_code, headers)


async def _refuse(request: Request, error: Any) -> Response:
    return error_answer(request, error)


def _error_responses(*statuses: int, **more: Any) -> Dict[Any, Dict[str, Any]]:
    return {**{status: {"model": ErrorBody, "description": _ERRORS[status]} for status in statuses}, **more}


def _add_server_routes(app: FastAPI, service: Service) -> None:
    page = resources.files("mxtrain.serving").joinpath(PAGE).read_bytes()
    policy = page_policy(page)
    plain_text = {"content": {"text/plain": {"schema": {"type": "string"}}}}

    @app.get("/", include_in_schema=False)
    async def try_by_hand() -> Response:
        return Response(page, media_type="text/html; charset=utf-8", headers={"content-security-policy": policy})

    @app.get("/v2", response_model=ServerBody, responses=_error_responses(401), summary="Metadata of the server")
    async def server() -> Any:
        return {"name": "mxtrain", "version": __version__, "extensions": ["binary_tensor_data", "generate"]}

    @app.get("/v2/health/live", summary="Whether the process answers")
    async def live() -> Dict[str, bool]:
        return {"live": True}

    @app.get(
        "/v2/health/ready",
        responses={503: {"description": "The server is about to end."}},
        summary="Whether requests are wanted",
    )
    async def ready() -> Response:
        return JSONResponse({"ready": not service.is_draining}, 503 if service.is_draining else 200)

    @app.get(
        "/metrics",
        response_class=Response,
        summary="Figures for Prometheus",
        responses=_error_responses(401, **{"200": plain_text}),
    )
    async def metrics() -> Response:
        text, media_type = service.metrics.text()
        return Response(text, headers={"content-type": media_type})

    @app.get("/v2/models", responses=_error_responses(401), summary="Metadata of all models")
    async def models() -> Dict[str, Any]:
        return {"models": [batcher.model.metadata() for batcher in service.batchers.values()]}


def _json_body(schema: Dict[str, Any]) -> Dict[str, Any]:
    """Returns the OpenAPI description of a request with a JSON body."""
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def _predict_body(service: Service) -> Dict[str, Any]:
    """Returns the OpenAPI description of the body of `predict`: all media types that one of the models accepts."""
    binary: Dict[str, Any] = {"schema": {"type": "string", "format": "binary"}}
    accepted = sorted({media_type for batcher in service.batchers.values() for media_type in batcher.model.accepts})
    any_object = {"schema": {"type": "object"}}
    forms = {media_type: any_object if media_type == "application/json" else binary for media_type in accepted}
    forms[FORM_TYPE] = {"schema": {"type": "object", "properties": {"file": binary["schema"]}}}
    return {"requestBody": {"required": True, "content": forms}}


def _add_model_routes(app: FastAPI, service: Service) -> None:
    infer_body, predict_body, generate_body = _json_body(INFER_BODY), _predict_body(service), _json_body(GENERATE_BODY)
    refused = _error_responses(400, 401, 404, 408, 413, 415, 422, 429, 503, 504)
    answered: Dict[str, Any] = {"200": {"model": InferAnswer}}
    generated: Dict[str, Any] = {"200": {"model": GenerateAnswer}}
    streamed: Dict[str, Any] = {
        "200": {
            "description": "Server-sent events, each with the JSON of an answer of generate.",
            "content": {EVENTS: {"schema": {"type": "string"}}},
        }
    }

    def add_routes(prefix: str) -> None:
        @app.get(prefix, response_model=ModelBody, responses=_error_responses(401, 404), summary="Metadata of a model")
        async def metadata(name: str, version: str = "1") -> Any:
            return service.batcher_of(name, version).model.metadata()

        @app.get(f"{prefix}/ready", responses=_error_responses(401, 404, 503), summary="Whether a model answers")
        async def ready(name: str, version: str = "1") -> Response:
            service.batcher_of(name, version)
            return JSONResponse({"name": name, "ready": not service.is_draining}, 503 if service.is_draining else 200)

        @app.post(
            f"{prefix}/infer",
            response_class=Response,
            openapi_extra=infer_body,
            responses={**refused, **answered},
            summary="Outputs for arrays",
        )
        async def infer(name: str, request: Request, version: str = "1") -> Response:
            return await call_model(service, "infer", name, version, request)

        @app.post(
            f"{prefix}/generate",
            response_class=Response,
            openapi_extra=generate_body,
            responses={**refused, **generated},
            summary="Text that a network writes",
        )
        async def generate(name: str, request: Request, version: str = "1") -> Response:
            return await call_model(service, "generate", name, version, request)

        @app.post(
            f"{prefix}/generate_stream",
            response_class=Response,
            openapi_extra=generate_body,
            responses={**refused, **streamed},
            summary="Text that a network writes, piece by piece",
        )
        async def generate_stream(name: str, request: Request, version: str = "1") -> Response:
            return await call_model(service, "generate_stream", name, version, request)

        @app.post(
            f"{prefix}/predict",
            openapi_extra=predict_body,
            responses=refused,
            summary="Prediction for an image, a text, a sound, rows of a table, or arrays by name",
        )
        async def predict(name: str, request: Request, version: str = "1") -> Response:
            return await call_model(service, "predict", name, version, request)

    add_routes("/v2/models/{name}")
    add_routes("/v2/models/{name}/versions/{version}")


async def call_model(service: Service, action: str, name: str, version: str, request: Request) -> Response:
    """Answers a call of `infer`, `predict`, `generate` or `generate_stream`; errors become an error response."""
    try:
        batcher = service.batcher_of(name, version)
        if action == "predict":
            return JSONResponse(await service.predict(batcher, request))
        if action == "generate":
            return JSONResponse(await service.generate(batcher, request))
        if action == "generate_stream":
            return EventStream(service, batcher, request)
        content, headers = await service.infer(batcher, request)
        return Response(content, headers=headers)
    except RequestError as error:
        return await _refuse(request, error)


def page_policy(page: bytes) -> str:
    """Returns the content security policy of the page: only its own script and style, and requests to this server."""
    import base64
    import hashlib

    # Hashes instead of 'unsafe-inline': a script that an answer smuggles into the page does not run.
    hashes = {
        tag: " ".join(
            f"'sha256-{base64.b64encode(hashlib.sha256(part).digest()).decode()}'"
            for part in re.findall(rb"<%s>(.*?)</%s>" % (tag, tag), page, re.DOTALL)
        )
        for tag in (b"script", b"style")
    }
    return (
        f"default-src 'none'; script-src {hashes[b'script']}; style-src {hashes[b'style']}; connect-src 'self'; "
        "img-src blob: data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


class RequestMiddleware:
    """ASGI middleware of all routes: checks the token, adds headers, logs requests and records metrics.

    Args:
        app: application with the routes.
        service: service with the models and metrics.
        token: bearer token that clients must send; empty = none.
    """

    def __init__(self, app: Any, service: Service, token: str) -> None:
        self._app, self._service, self._token = app, service, token.encode()
        self._metrics: Dict[Tuple[str, str, int], Tuple[Any, Any]] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        begin, status, has_begun = time.perf_counter(), 500, False
        route = "none"  # never the client's path: each distinct one would be a new Prometheus time series
        headers = dict(scope["headers"])
        given_id = headers.get(b"x-request-id", b"").decode("latin-1")
        # A client's id is copied into a header and the log, so it may hold neither line breaks nor spaces.
        request_id = given_id if _REQUEST_ID.fullmatch(given_id) else f"{random.getrandbits(64):016x}"
        fields: Dict[str, Any] = {}
        scope["mxtrain.fields"] = fields

        async def answer(message: Message) -> None:
            nonlocal status, has_begun
            if message["type"] == "http.response.start":
                status, has_begun = message["status"], True
                extra_headers = [(b"x-request-id", request_id.encode()), (b"x-content-type-options", b"nosniff")]
                if self._service.is_draining:
                    extra_headers.append((b"connection", b"close"))
                message["headers"] = [*message.get("headers", []), *extra_headers]
            await send(message)

        try:
            if scope["path"] not in OPEN_PATHS and not self._has_token(headers):
                await _plain_refusal(answer, 401, "this needs the server's token, as `Authorization: Bearer TOKEN`.")
            elif scope["method"] == "POST" and (match := _MODEL_CALL.fullmatch(scope["path"])):
                # Bypass FastAPI, which takes two thirds of the time of a small request. Its routes for these paths
                # only serve the OpenAPI description.
                name, action = match.groups()
                scope["path_params"], route = {"name": name}, f"/v2/models/{{name}}/{action}"
                response = await call_model(self._service, action, name, "1", Request(scope, receive))
                await response(scope, receive, answer)
            else:
                # The same answer without its body, which the connection leaves out.
                routed = {**scope, "method": "GET"} if scope["method"] == "HEAD" else scope
                await self._app(routed, receive, answer)
                route = routed["route"].path if "route" in routed else route
                scope["path_params"] = routed.get("path_params")
        except Exception as error:
            log_event("error", logging.ERROR, exc_info=True, request_id=request_id, error=str(error))
            if not has_begun:
                await _plain_refusal(answer, 500, "the server has failed. Its log says more.")
        finally:
            self._record(scope, route, status, time.perf_counter() - begin, request_id, fields)

    def _has_token(self, headers: Dict[bytes, bytes]) -> bool:
        if not self._token:
            return True
        kind, _, received = headers.get(b"authorization", b"").partition(b" ")
        # The comparison takes constant time, so that its duration does not reveal a prefix of the token.
        return kind.lower() == b"bearer" and hmac.compare_digest(received.strip(), self._token)

    def _record(
        self, scope: Scope, route: str, status: int, seconds: float, request_id: str, fields: Dict[str, Any]
    ) -> None:
        """Counts and times an answer for Prometheus, and logs the request if it failed or all are logged."""
        name = (scope.get("path_params") or {}).get("name", "")
        model = name if name in self._service.batchers else ""
        counted, timed = self._metrics_of(model, route, status)
        counted.inc()
        timed.observe(seconds)
        is_failure = status >= 400 and not route.startswith(HEALTH)  # health routes return 503 while draining
        if self._service.settings.log == "requests" or is_failure:
            client = scope.get("client") or ("", 0)
            log_event(
                "request",
                logging.WARNING if status >= 500 else logging.INFO,
                method=scope["method"],
                path=scope["path"][:200],
                status=status,
                ms=round(seconds * 1000, 2),
                model=model,
                client=client[0],
                request_id=request_id,
                **fields,
            )

    def _metrics_of(self, model: str, route: str, status: int) -> Tuple[Any, Any]:
        """Returns the counter and the histogram for an answer. They are cached, because Prometheus looks them up under
        a lock."""
        answer_metrics = self._metrics.get((model, route, status))
        if answer_metrics is None:
            metrics = self._service.metrics
            answer_metrics = metrics.requests.labels(model, route, str(status)), metrics.seconds.labels(model, route)
            self._metrics[model, route, status] = answer_metrics
        return answer_metrics


async def _plain_refusal(send: Send, status: int, message: str) -> None:
    content = json.dumps({"error": message}).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(content)).encode()),
        (b"connection", b"close"),
    ]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": content})
