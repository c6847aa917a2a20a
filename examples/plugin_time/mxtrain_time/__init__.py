"""Forecasts of time series, as a plug-in of mxtrain: `conf/` holds the options, `forecasting` the classes."""
