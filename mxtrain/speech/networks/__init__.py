"""Networks for speech as Gluon blocks."""
