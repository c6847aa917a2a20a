"""Errors that the server sends to a client."""

from __future__ import annotations


class RequestError(Exception):
    """A request is refused.

    Args:
        status: HTTP status of the answer.
        message: reason, a sentence for the client.
        closes: True if the connection is closed after the answer, e.g. because the body of the request was not read.
    """

    def __init__(self, status: int, message: str, closes: bool = False) -> None:
        super().__init__(message)
        self.status, self.message, self.closes = status, message, closes
