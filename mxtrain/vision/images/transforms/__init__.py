"""Transforms of training images: an ordered list of them, each with one method, which annotations follow."""
