"""Networks: their descriptions, weights, freezing, parameter groups and summary. Importing it imports no MXNet."""
