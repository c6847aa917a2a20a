"""Datasets of texts with a class each."""
