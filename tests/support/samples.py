"""What a server's metrics page says, added up."""

from dragoman.local import LocalServer


def sum_of(server: LocalServer, name: str, *labels: str) -> float:
    """The sum of a metric's samples whose labels say all of these, such as "waiting" or 'phase="waiting"'."""
    samples = server.metrics().items()
    return sum(
        value for key, value in samples if key.partition("{")[0] == name and all(label in key for label in labels)
    )
