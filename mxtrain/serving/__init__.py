"""Serves exported networks over HTTP: the Open Inference Protocol v2, dynamic batching, metrics. Imports no MXNet."""
