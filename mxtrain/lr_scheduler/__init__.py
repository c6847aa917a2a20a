"""Learning-rate schedules. All but `Plateau` are pure functions of the step, so checkpoints store no state for them."""
