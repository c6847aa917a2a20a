"""Parameter servers. They hold parameters or rows of embedding tables, and apply the optimizer to them."""
