"""Converts annotated images from one format to another."""
