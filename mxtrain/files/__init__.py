"""Reads untrusted files within limits, writes files that are complete or absent, and keeps the user's cache folder."""
