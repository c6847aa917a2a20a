"""Data in object stores: lists, ranges of bytes, and a cache on the disk. No other package knows these services."""
