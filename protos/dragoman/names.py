"""A name for each call, by which it can be found in the server's log and traces."""

import os
from itertools import count

REQUEST_ID = "x-request-id"  # the metadata that it is sent as, and comes back as

_START, _NUMBERS = os.urandom(6).hex(), count(1)

Metadata = tuple[tuple[str, str], ...]


def new_request_id() -> str:
    """A name that no other call has, of this client or another."""
    return f"{_START}-{next(_NUMBERS):x}"


def named(metadata: Metadata | None, request_id: str) -> Metadata:
    """What is sent with a call of that name."""
    return (*(metadata or ()), (REQUEST_ID, request_id))
