"""Answers of a model, and how good they are."""
