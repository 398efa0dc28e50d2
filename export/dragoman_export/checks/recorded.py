"""What a manifest kept of the check when the bundle was made, for checks without the model."""

from pydantic import BaseModel, FiniteFloat, ValidationError

from dragoman_server.bundle.load import Bundle, BundleError
from dragoman_server.bundle.manifest import MANIFEST_FILE


class RecordedGreedy(BaseModel):
    """Greedy answers: how many sources, for how many graphs and model agreed, and some of the graphs' answers."""

    sources: int = 0
    equal: int = 0
    answers: list[tuple[str, list[int]]] = []


class Recorded(BaseModel):
    """The parts of `parity` that later checks use."""

    largest_rounding: FiniteFloat = 0.0
    greedy: RecordedGreedy = RecordedGreedy()


def recorded(bundle: Bundle) -> Recorded:
    """Reads them.

    Raises:
        BundleError: they are not what an export writes.
    """
    try:
        return Recorded.model_validate(bundle.manifest.parity)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, ("parity", *first["loc"])))
        raise BundleError(f"{bundle.path / MANIFEST_FILE}: {field}: {first['msg']}") from None
