"""Detectors as Gluon blocks."""
