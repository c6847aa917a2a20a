"""Starts training: single runs, processes of a run, jobs of a sweep, and folds of a cross validation."""
