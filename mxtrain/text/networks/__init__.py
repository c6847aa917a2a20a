"""Networks for texts as Gluon blocks."""
