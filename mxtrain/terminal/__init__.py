"""Output on a terminal: consoles, progress bars, tables and durations. Output never stops a run."""
