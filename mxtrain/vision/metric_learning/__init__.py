"""Metric learning: networks that embed images, such as those of face recognition."""
