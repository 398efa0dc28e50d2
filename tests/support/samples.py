"""Sums of samples on a server's metrics page."""

from dragoman.local import LocalServer


def sum_of(server: LocalServer, name: str, *labels: str) -> float:
    """Returns the sum of a metric's samples with all of these in the labels, such as "waiting" or 'phase="waiting"'."""
    samples = server.metrics().items()
    return sum(
        value for key, value in samples if key.partition("{")[0] == name and all(label in key for label in labels)
    )
