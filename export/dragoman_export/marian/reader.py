"""Reads a model.npz of Marian, with its vocabularies, as the original of a bundle."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from dragoman_export.errors import ExportError
from dragoman_export.huggingface.assembly import assemble, limits_of, special_tokens
from dragoman_export.huggingface.hub import resolve
from dragoman_export.marian.model import read_marian
from dragoman_export.marian.text import SETTINGS, read_marian_text
from dragoman_export.original import Original
from dragoman_server.bundle.manifest import Generation

BEAMS = 12  # default of marian-decoder


def read_original(
    name: str, tokenizer: Sequence[Path], ignore: Collection[str], say: Callable[[str], None]
) -> Original:
    """Reads a model.

    Args:
        name: The model.npz.
        tokenizer: A Hugging Face directory, a directory with Marian's vocabularies, or these files.
        ignore: Settings in decoder.yml to ignore although they would change tokens.
        say: Prints a line for the user.

    Raises:
        ExportError: The model, the vocabularies or the settings cannot be read, or they do not belong together.
    """
    path = Path(name)
    say(f"reading {path}")
    marian = read_marian(path)
    text = read_marian_text(tokenizer, marian)
    tokens = special_tokens(text, pad=marian.start, begin=marian.start, end=text.end or 0)
    generation = _generation(path, tokenizer, ignore, tokens.unknown, limits_of(marian.model).max_target_tokens)
    origin = replace(resolve(str(path.absolute().parent))[1], name=path.resolve().name)
    return assemble(name, marian.model, text, tokens, generation, origin, {"library": "Marian"})


def _generation(
    model: Path, tokenizer: Sequence[Path], ignore: Collection[str], unknown: int, limit: int
) -> Generation:
    """Returns the settings of marian-decoder: those of a decoder.yml, else its defaults.

    Marian never writes the unknown token, and renormalizes nothing when it excludes it. It stops once as many
    hypotheses are finished as the beam is wide.
    """
    place = next((place for place in _places(model, tokenizer) if place.is_file()), None)
    values = {} if place is None else _settings(place)
    for key in ignore:
        values.pop(key, None)

    def number(key: str, default: float) -> float:
        value = values.get(key, default)
        if not isinstance(value, int | float):
            raise ExportError(f"{place}: {key} is {value!r}; expected a number")
        return float(value)

    if penalty := number("word-penalty", 0):
        raise ExportError(
            f"{place}: word-penalty is {penalty:g}, which is not supported; --ignore word-penalty imports the model "
            "without it"
        )
    beams = int(number("beam-size", BEAMS))
    options: dict[str, Any] = {"max_new_tokens": limit}
    if beams > 1:
        options |= {"beam_size": beams, "length_penalty": number("normalize", 0), "stopping": "STOPPING_EARLY"}
    if not values.get("allow-unk"):
        options["suppressed_tokens"] = [unknown]
    return Generation(options=options, renormalized=False)


def _places(model: Path, tokenizer: Sequence[Path]) -> list[Path]:
    """Returns where the settings may be, the most specific place first."""
    folders = [place for place in tokenizer if place.is_dir()]
    return [*(folder / SETTINGS for folder in folders), Path(f"{model}.{SETTINGS}"), model.with_name(SETTINGS)]


def _settings(path: Path) -> dict[str, Any]:
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise ExportError(f"{path}: cannot be read as YAML ({str(error).splitlines()[0]})") from None
    if not isinstance(values, dict):
        raise ExportError(f"{path}: expected settings by name")
    return values
