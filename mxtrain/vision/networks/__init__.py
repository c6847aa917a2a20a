"""Parts of networks for images as Gluon blocks."""
