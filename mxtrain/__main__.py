"""Runs the command line."""

import sys

if __name__ == "__main__":
    # Before anything else is imported, which could be the current folder's.
    from mxtrain.config.search_path import leave_out_current_folder

    leave_out_current_folder()
    from mxtrain.cli.dispatch import run

    sys.exit(run())
