"""Reads tables: columns of text files, and rows of numbers in batches."""
