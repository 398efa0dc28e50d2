"""What can go wrong for the user of an export."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dragoman_export.checks.parity import ParityReport


class ExportError(Exception):
    """The export can't be made; the message is one sentence for the command line."""


class CheckFailedError(ExportError):
    """The graphs do not compute what the model computes.

    Attributes:
        report: all that was found.
    """

    def __init__(self, message: str, report: "ParityReport") -> None:
        super().__init__(message)
        self.report = report
