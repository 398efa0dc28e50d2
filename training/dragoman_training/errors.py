"""Errors that users can fix. Each message is one sentence: the file, line or key, what is wrong, and the remedy."""


class TrainingError(Exception):
    """An error that the command line prints without a traceback."""


class Stopped(Exception):
    """The run was asked to stop, and what it was doing is not finished."""


class RecipeError(TrainingError):
    """The recipe cannot be read, or its values contradict each other."""


class DataError(TrainingError):
    """A data file cannot be read, or holds a bad line and the recipe refuses those."""


def missing_extra(error: ModuleNotFoundError, extra: str) -> str:
    """Returns the message for a package that is not installed, naming the extra that installs it.

    Raises:
        ModuleNotFoundError: The missing module is one of Dragoman's own, which is a bug.
    """
    package = (error.name or "").partition(".")[0]
    if package in ("dragoman_training", "dragoman_export", "dragoman_server", ""):
        raise error
    return f"{package} is not installed; `pip install '.[{extra}]'` in a clone of Dragoman installs it"
