"""Shared by datasets of texts: vocabularies, sources, and batches of texts of like length."""
