"""Images: reading, augmentation, and the tasks on them."""
