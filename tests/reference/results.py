"""Pieces of answers that all searches share."""

from collections.abc import Sequence

from dragoman_server.core.requests import TokenChoice
from tests.reference.distribution import Vector


def places(log_probabilities: Vector, order: Sequence[int], count: int) -> list[TokenChoice]:
    """The `count` most probable tokens of a place."""
    return [TokenChoice(token, float(log_probabilities[token])) for token in order[:count]]
