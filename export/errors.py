"""What can go wrong for the user of an export."""


class ExportError(Exception):
    """The export can't be made, or its check failed; the message is one sentence for the command line."""
