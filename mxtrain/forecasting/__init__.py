"""Forecasting: series of numbers over time and the values that follow them."""
