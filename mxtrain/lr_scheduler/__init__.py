"""Learning-rate schedules: pure functions of the step, so that a resumed run needs no state of theirs."""
