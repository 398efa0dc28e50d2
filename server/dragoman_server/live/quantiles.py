"""Quantiles of what was counted by bucket."""

from collections.abc import Sequence


def quantile(bounds: Sequence[float], counts: Sequence[float], share: float) -> float | None:
    """The value that `share` of the observations do not exceed, as Prometheus' histogram_quantile estimates it.

    Args:
        bounds: upper bounds of the buckets, rising; there is one bucket more, without a bound.
        counts: of each bucket by itself.
        share: 0 to 1.

    Returns:
        a value inside the bucket, as if its observations were spread evenly; the last bound where it is beyond that;
        None where nothing was observed.
    """
    rank = share * sum(counts)
    if rank <= 0:
        return None
    below = 0.0
    for index, bound in enumerate(bounds):
        count = counts[index]
        if below + count >= rank:
            lower = bounds[index - 1] if index else 0.0
            return lower + (bound - lower) * (rank - below) / count
        below += count
    return bounds[-1]
