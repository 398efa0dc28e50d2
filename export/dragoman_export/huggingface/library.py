"""What the import does about transformers itself: silence, and what its exceptions say."""

from dragoman_server.runtime.device import first_line


def silence() -> None:
    """Turns warnings and progress bars of transformers off: an import prints its own lines."""
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()


def reason(error: Exception) -> str:
    """Returns why the library failed, in one line without a full stop."""
    heading = first_line(error)
    if heading.endswith(":"):  # the next line has the value
        heading = " ".join(str(error).split("\n", 2)[:2])
    return " ".join(heading.split()).rstrip(".")
