"""The server's application in this process, without sockets."""

from __future__ import annotations

import asyncio
from typing import Any, List, Mapping, Sequence, Tuple

from mxtrain.serving.app import build_app
from mxtrain.serving.models import ServedModel
from mxtrain.serving.service import Service
from mxtrain.serving.spec import ServeSettings

Answer = Tuple[int, bytes, Mapping[bytes, bytes]]


async def ask_all(models: Sequence[ServedModel], requests: Sequence[Any], **settings: Any) -> List[Answer]:
    """Sends (method, path, headers, body) to the application itself, with settings of the server."""
    service = Service(models, ServeSettings(log="errors", **settings))
    app, answers = build_app(service, ""), []
    service.start()
    for method, path, headers, body in requests:
        sent: List[Any] = []
        messages = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive(messages: List[Any] = messages) -> Any:
            return messages.pop() if messages else {"type": "http.disconnect"}

        async def send(message: Any, sent: List[Any] = sent) -> None:
            sent.append(message)

        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "root_path": "",
            "scheme": "http",
            "server": ("x", 1),
            "client": ("y", 2),
            "http_version": "1.1",
            "headers": [(name.encode(), value.encode("latin-1")) for name, value in headers.items()],
        }
        await app(scope, receive, send)
        content = b"".join(one.get("body", b"") for one in sent[1:])
        answers.append((sent[0]["status"], content, dict(sent[0]["headers"])))
    await service.close()
    return answers


def ask(models: Sequence[ServedModel], *requests: Any, **settings: Any) -> List[Answer]:
    """Answers (method, path, headers, body) each."""
    return asyncio.run(ask_all(models, requests, **settings))
