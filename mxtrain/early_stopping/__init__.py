"""Early stopping: ends a run when the monitored value no longer gets better."""
