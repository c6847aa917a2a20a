"""What networks that find things in pictures have in common: how boxes become what their outputs are compared with, and
how outputs become boxes."""
