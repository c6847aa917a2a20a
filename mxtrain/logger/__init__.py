"""Loggers, with which a person watches a run: a console, TensorBoard, metrics.jsonl, metrics.csv.

Each kind is a description (`Logger`) in a module of its name and builds a `Callback`. Loggers only watch: what cannot
be written is reported once, kept for a later attempt where that is possible, and never stops a run.
"""
