"""Trained networks as ONNX, with a proof that they compute the same."""
