"""Settings of `mxtrain serve`."""

from __future__ import annotations

from typing import Literal

import pydantic
from typing_extensions import Annotated

from mxtrain.types import NonNegativeFloat, Positive, PositiveFloat, Spec

MAX_THREADS = 256
"""onnxruntime starts all of them, and does not return if the system allows no more."""


class ServeSettings(Spec):
    """Settings of `serve`."""

    host: str = "127.0.0.1"
    """Address to listen on; 0.0.0.0 = every network of this machine (set MXTRAIN_SERVE_TOKEN then)."""
    port: Annotated[int, pydantic.Field(ge=0, le=65535)] = 8000
    """Port to listen on; 0 = a free one, which is printed."""
    max_batch: Positive = 32
    """Samples that a model computes at once at most, of all requests together; 1 = no batching."""
    batch_wait_ms: NonNegativeFloat = 2.0
    """Time that a batch waits for more, if several clients send; never longer than the last batch took to compute."""
    queue: Positive = 256
    """Requests of one model that are answered or wait at the same time at most; further ones get 429."""
    timeout_s: PositiveFloat = 30.0
    """Time for a request's body to arrive, and again for its answer: 408 or 504 after that. A connection whose client
    reads nothing of its answer for this time is closed."""
    header_s: PositiveFloat = 10.0
    """Time for a new connection to send the head of its request."""
    idle_s: PositiveFloat = 75.0
    """Time after which a connection without a request is closed."""
    drain_s: NonNegativeFloat = 2.0
    """Time after SIGTERM or SIGHUP in which requests are still accepted, while /v2/health/ready says no."""
    max_connections: Positive = 2000
    """Open connections; with more, the one that has waited longest without a request is closed."""
    max_body_mb: PositiveFloat = 32.0
    """Size of a request's body in MB; larger ones get 413."""
    max_json_mb: PositiveFloat = 8.0
    """Size of the JSON of a body, or of a table as text, in MB; larger ones get 413. All requests wait while JSON is
    parsed. Arrays can be larger with the protocol's binary extension."""
    max_pending_mb: PositiveFloat = 512.0
    """Limit in MB of the bodies of all requests together; 503 beyond it. Also the limit of the unread answers of all
    connections together; beyond it, the connection that has not read for the longest time is closed."""
    max_pixels: Positive = 50_000_000
    """Pixels of an image, by its header, before it is decoded."""
    max_scale: PositiveFloat = 4.0
    """Largest size of an open dimension (length, height, width), relative to the largest sample of the proof."""
    max_tokens: Positive = 1024
    """Tokens that `generate` writes for a request at most."""
    generations: Positive = 4
    """Texts that are written at the same time, of all models together; further requests get 429."""
    threads: Annotated[int, pydantic.Field(ge=0, le=MAX_THREADS)] = 0
    """Threads of each model; 0 = one for each core."""
    check: bool = True
    """Repeat the proof of each folder before listening."""
    log: Literal["requests", "errors"] = "requests"
    """What is logged, as JSON lines on standard error: each request, or only those that fail."""
