"""Reasons for which an ONNX file is not read."""

from __future__ import annotations


class DamagedOnnx(ValueError):
    """The content is no valid ONNX file. The message is a clause, such as "it is truncated"."""


class RefusedOnnx(ValueError):
    """The file is valid, and mxtrain does not read its form. The message is a clause, which names the node."""
