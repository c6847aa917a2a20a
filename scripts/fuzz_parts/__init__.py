"""Command lines drawn from the composed configuration, and what each of them did."""
