"""Loggers, with which a person watches a run: a console, TensorBoard, metrics.jsonl, metrics.csv.

Each kind is a description (`Logger`) in a module of its name and builds a `Callback`. Loggers never change or stop a
run: a failed write is reported once, and repeated later if possible.
"""
