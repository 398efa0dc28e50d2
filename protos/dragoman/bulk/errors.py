"""Errors that users can fix. Each message is one sentence: what is wrong, and the remedy."""


class BulkError(Exception):
    """The work can't be done, or can't continue."""


class StoppedError(Exception):
    """The work was stopped from outside; what has been saved stays."""
