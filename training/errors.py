"""Errors a user can put right: each message is one sentence that names what is wrong and what was expected."""


class TrainingError(Exception):
    """What the command line prints without a traceback."""


class RecipeError(TrainingError):
    """A recipe that cannot be read or does not hold together."""


class DataError(TrainingError):
    """A corpus that cannot be read, or a bad line where the recipe refuses them."""
