"""Exports trained networks to ONNX and PyTorch, with a proof that they compute the same as in MXNet."""
