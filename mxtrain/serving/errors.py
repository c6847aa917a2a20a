"""Errors that a client sees."""

from __future__ import annotations


class RequestError(Exception):
    """A request that is not answered.

    Args:
        status: of the HTTP answer.
        message: a sentence for the client.
        closes: whether the connection is closed, e.g. because its body was not read.
    """

    def __init__(self, status: int, message: str, closes: bool = False) -> None:
        super().__init__(message)
        self.status, self.message, self.closes = status, message, closes
