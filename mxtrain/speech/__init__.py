"""Shared by datasets of rows of frames with a transcript: recordings of speech, or lines of writing."""
