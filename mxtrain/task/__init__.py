"""What a sample means: losses, metrics, predictions and reports of each kind of problem."""
