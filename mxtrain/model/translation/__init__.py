"""Shared by networks that translate."""
