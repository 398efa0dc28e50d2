"""How much of a check a model's size allows: small models are checked in full, large ones in minutes and in memory."""

from dragoman_server.bundle.manifest import Manifest
from dragoman_server.runtime.device_memory import row_bytes

MOST_PRODUCTS = 1 << 38  # multiplications of one uncached pass of several rows, repeated in several precisions
MOST_LOGITS = 1 << 22  # of one pass; all are kept, sorted and compared
MOST_FILLED = 5 << 27  # bytes of a cache pool that is written throughout
MOST_RESERVED = 1 << 30  # bytes of a cache pool of which few positions are used
_FLOAT = 4


def filled_rows(manifest: Manifest, wanted: int) -> int:
    """Returns how many cache rows, at most those wanted, may be written throughout."""
    return _rows(manifest, wanted, MOST_FILLED)


def reserved_rows(manifest: Manifest, wanted: int) -> int:
    """Returns how many cache rows, at most those wanted, may be reserved for short sequences."""
    return _rows(manifest, wanted, MOST_RESERVED)


def longest_source(manifest: Manifest, rows: int, wanted: int) -> int:
    """Returns how long sources of that many rows may be in tokens, at most those wanted, for a pass to take seconds.

    A single row may always be as long as wanted, so that the last position is checked too.
    """
    if rows == 1:
        return wanted
    return min(wanted, max(1, MOST_PRODUCTS // (rows * manifest.shape.parameters)))


def longest_target(manifest: Manifest, rows: int) -> int:
    """Returns how long targets of that many rows may be in tokens for all their logits to be compared in seconds."""
    return min(manifest.limits.max_target_tokens, max(1, MOST_LOGITS // (rows * manifest.shape.target_vocabulary)))


def _rows(manifest: Manifest, wanted: int, most: int) -> int:
    return min(wanted, max(1, most // row_bytes(manifest, _FLOAT)))
