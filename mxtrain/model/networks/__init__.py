"""Networks as Gluon blocks, which the descriptions in `mxtrain.model` build."""
