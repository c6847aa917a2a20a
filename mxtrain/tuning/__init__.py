"""Studies: many runs that look for the best settings together (`mxtrain tune`).

A study is a folder. `study.json` says what is trained and which values are tried; Optuna's journal (or a database)
holds the trials; each trial is an ordinary run directory, named by its number. Any number of workers share the folder.
"""
