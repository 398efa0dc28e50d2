"""What ends a start."""


class StartError(Exception):
    """The server can't start; the message says why in one sentence."""
