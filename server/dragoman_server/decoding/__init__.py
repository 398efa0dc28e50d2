"""Searches: how token sequences are chosen from the log-probabilities of each decode step."""
