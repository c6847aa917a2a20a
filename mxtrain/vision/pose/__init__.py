"""Key points of objects in images, such as the joints of a person."""
