"""Downloads of published files: `transfer` receives them, `archives` unpacks them."""
