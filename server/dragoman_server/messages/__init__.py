"""Converts API messages to engine requests, checking every field, and engine results to API messages."""
