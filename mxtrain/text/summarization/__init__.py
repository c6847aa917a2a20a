"""Summarization: short texts with the content of documents, by the networks of translation."""
