"""Access to MXNet: everything that depends on its version, workarounds for its operators, and mxtrain's own ones."""
