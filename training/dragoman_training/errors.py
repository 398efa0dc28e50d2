"""Errors a user can put right: each message is one sentence that names what is wrong and what was expected."""


class TrainingError(Exception):
    """What the command line prints without a traceback."""


def missing_extra(error: ModuleNotFoundError, extra: str) -> str:
    """What to tell a person whose installation lacks what an extra brings.

    Raises:
        ModuleNotFoundError: the same, where it is our own module that is missing.
    """
    package = (error.name or "").partition(".")[0]
    if package in ("dragoman_training", "dragoman_export", "dragoman_server", ""):
        raise error
    return f"{package} is not installed; `pip install '.[{extra}]'` in a clone of Dragoman brings it"


class RecipeError(TrainingError):
    """A recipe that cannot be read or does not hold together."""


class DataError(TrainingError):
    """A corpus that cannot be read, or a bad line where the recipe refuses them."""
