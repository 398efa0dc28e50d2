"""The error that an export reports to the user."""


class ExportError(Exception):
    """The export failed; the message is one sentence for the command line."""
