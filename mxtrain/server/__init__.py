"""Parameter servers, which hold weights or rows of tables and update them."""
