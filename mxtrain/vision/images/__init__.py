"""Shared parts of image datasets: decoding, augmentation, record files, and images with masks."""
