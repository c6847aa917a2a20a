"""A trained network for PyTorch: its weights as safetensors, its code as plain `torch.nn`, and a proof of both."""
