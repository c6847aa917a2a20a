"""Logs as JSON, one object a line, on standard error."""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import Any, Union

SERVED = logging.getLogger("mxtrain.serving")


class JsonLines(logging.Formatter):
    """Writes a record as a JSON object: time (UTC), level, event, and the fields of `extra`."""

    def format(self, record: logging.LogRecord) -> str:
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        row = {
            "time": f"{moment}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            **record.__dict__.get("fields", {}),
        }
        if record.exc_info:
            row["traceback"] = self.formatException(record.exc_info)
        # Escapes keep a client's marks of text direction and control characters away from the terminal.
        return json.dumps(row, ensure_ascii=True, default=str)


def log_as_json() -> None:
    """Sends what is logged by this package, uvicorn and asyncio to standard error."""
    to_stderr = logging.StreamHandler(sys.stderr)
    to_stderr.setFormatter(JsonLines())
    others = [(logging.getLogger(name), logging.ERROR) for name in ("uvicorn", "asyncio")]
    for logger, level in ((SERVED, logging.INFO), *others):
        logger.handlers, logger.propagate = [to_stderr], False
        logger.setLevel(level)


def log_event(
    event: str, level: int = logging.INFO, exc_info: Union[bool, BaseException] = False, **fields: Any
) -> None:
    """Logs an event with its fields."""
    SERVED.log(level, event, extra={"fields": fields}, exc_info=exc_info)
