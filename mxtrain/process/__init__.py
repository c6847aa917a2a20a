"""This process: the signals that stop it, and the heartbeats that it sends. Light, for both begin before all else."""
