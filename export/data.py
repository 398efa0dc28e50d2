"""The run's own data, as far as it still lies where the recipe says."""

from collections.abc import Callable, Sequence
from pathlib import Path

from tokenizers import Tokenizer

from server.text.blank import is_blank
from training.data.corpus import BadLines, Pair, read_pairs
from training.errors import DataError
from training.recipe import ParallelFiles
from training.run import Run


def evaluation_data(run: Run, say: Callable[[str], None]) -> dict[str, list[Pair]]:
    """Pairs to measure on by the name of the set, "dev" and "test"; a set that is gone, or that never was, is left out.

    Args:
        say: is told what is left out and why.
    """

    def read(name: str, load: Callable[[], list[Pair]]) -> None:
        try:
            pairs = load()
        except DataError as error:
            say(f"nothing is measured on {name}: {error}")
            return
        if pairs:
            data[name] = pairs

    data: dict[str, list[Pair]] = {}
    read("dev", run.dev_pairs)
    files: list[Path | ParallelFiles] = run.recipe.data.test or []
    read("test", lambda: read_pairs(files, BadLines("skip")))
    return data


def spread(texts: Sequence[str], count: int) -> list[str]:
    """At most `count` distinct texts, from evenly over all."""
    distinct = list(dict.fromkeys(texts))
    step = max(1, len(distinct) // count)
    return distinct[step // 2 :: step][:count]


def unusable(tokenizer: Tokenizer, text: str, limit: int, unknown: int) -> str | None:
    """Why a text can't be a source of the model; None where it can."""
    if is_blank(text):
        return "has nothing that can be seen"
    ids = tokenizer.encode(text).ids
    if len(ids) > limit:
        return f"has {len(ids)} tokens, more than the model's {limit}"
    if unknown in ids:
        return "has characters that the model's tokenizer does not know"
    return None
