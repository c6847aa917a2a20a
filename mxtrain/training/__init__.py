"""The training loop: steps, evaluation, saving and continuing."""
