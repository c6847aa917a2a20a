"""Networks in ONNX files.

The file is checked and converted, node by node (`operators/`), to the graph of a symbol and its arrays. These are
trained as those of `model=symbol` are.
"""
