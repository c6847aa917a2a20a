"""Weights of networks of PyTorch's libraries: read from safetensors, renamed and converted for ours."""
