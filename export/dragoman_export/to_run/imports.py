"""Makes a training run of a published model."""

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor

from dragoman_export.bundle.options import ImportOptions
from dragoman_export.errors import ExportError
from dragoman_export.imports import read_import
from dragoman_export.original import Original, Vocabulary
from dragoman_export.to_run.tokenizers import renumbered
from dragoman_export.to_run.writing import check_place, write_run
from dragoman_server.bundle.manifest import Generation, Text
from dragoman_server.bundle.segmenter import Segmenter, load_pieces
from dragoman_training.data.tokenizers import END_ID, PAD_ID, SPECIAL_TOKENS, save_tokenizer
from dragoman_training.files import SOURCE_TOKENIZER, TARGET_TOKENIZER
from dragoman_training.model import Transformer
from dragoman_training.recipe import Recipe

LEAST_ALIKE = 0.8  # share of the sample texts that the converted tokenizer must split like the model's own
_TABLES = {
    "source": ("encoder.embedding.tokens.weight",),
    "target": ("decoder.embedding.tokens.weight", "decoder.projection.weight"),
}


def run_of_import(options: ImportOptions, run: Path, say: Callable[[str], None]) -> None:
    """Writes a finished run with the model and the tokenizers of a published model.

    The vocabulary is renumbered, so that the special tokens have the ids of models trained here; where padding is also
    the first input of the decoder, it becomes two tokens.

    Args:
        options: The model.
        run: Directory to make.
        say: Prints a line for the user.

    Raises:
        ExportError: The model cannot be read, works in a way that training cannot continue, or the directory exists.
    """
    check_place(run)
    original = read_import(options, say)
    _check_rules(original, original.text or Text(), original.generation or Generation())
    orders = {"source": _order(original, original.source), "target": _order(original, original.target)}
    shared = original.model.config.share_embeddings in ("inputs", "all")
    if shared and orders["source"] != orders["target"]:
        raise ExportError(f"{original.place}: both sides share a table, but their tokenizers have different ids")
    tokenizers = {
        side: renumbered(vocabulary, orders[side])
        for side, vocabulary in (("source", original.source), ("target", original.target))
    }
    _compare(original, tokenizers["source"], orders["source"], say)
    model = _renumbered_model(original.place, original.model, orders)

    def write_tokenizers(folder: Path) -> None:
        save_tokenizer(tokenizers["source"], folder / SOURCE_TOKENIZER)
        save_tokenizer(tokenizers["target"], folder / TARGET_TOKENIZER)

    recipe = Recipe.model_validate(
        {
            "data": {"train": ["imported"]},  # only to be valid: there is no such data
            "tokenizers": {"joint": shared, "source": {"kind": "imported"}},
            "model": model.config.model_dump(),
            "training": {"steps": 1, "batch_tokens": 1, "learning_rate": 1e-4},
        }
    )
    origin = {"name": original.place, **original.origin}
    write_run(run, recipe, model.state_dict(), [], [], {"origin": origin}, write_tokenizers)


def _check_rules(original: Original, text: Text, generation: Generation) -> None:
    """Refuses models whose sources or targets hold more than a text and the end token."""
    problem = ""
    if text.languages:
        problem = "it has languages"
    elif text.prefix or text.before or text.after != [original.tokens.end]:
        problem = "its sources are not a text and the end token"
    elif generation.forced_first is not None or text.forces_language:
        problem = "its targets start with a forced token"
    if problem:
        raise ExportError(f"{original.place}: {problem}, which runs cannot continue")


def _order(original: Original, vocabulary: Vocabulary) -> list[int]:
    """Returns the former id of each token of the run."""
    tokens = original.tokens
    special = [tokens.pad, tokens.unknown, tokens.begin, tokens.end]
    return [*special, *sorted(set(vocabulary.tokenizer.get_vocab().values()) - {*special})]


def _compare(original: Original, source: Tokenizer, order: Sequence[int], say: Callable[[str], None]) -> None:
    """Compares the converted source tokenizer with the model's own, on sample texts."""
    new = {former: id_ for id_, former in reversed([*enumerate(order)])}
    pieces = original.source.pieces
    loaded = None if pieces is None else load_pieces(pieces)
    own = Segmenter(original.source.tokenizer, loaded, original.tokens.unknown)
    texts = list(original.sources)
    pairs = zip(own.ids(texts), source.encode_batch(texts), strict=True)
    alike = sum([*(new[id_] for id_ in ids), END_ID] == encoding.ids for ids, encoding in pairs)
    say(f"the converted tokenizer splits {alike} of {len(texts)} sample texts like the model's own")
    if alike < LEAST_ALIKE * len(texts):
        raise ExportError(
            f"{original.place}: the converted tokenizer splits only {alike} of {len(texts)} sample texts like the "
            "model's own, so the weights would not fit it"
        )


def _renumbered_model(place: str, model: Transformer, orders: dict[str, list[int]]) -> Transformer:
    """Returns the model with the rows of its tables in the new order."""
    weights: dict[str, Tensor] = dict(model.state_dict())
    for side, names in _TABLES.items():
        for name in names:
            weights[name] = weights[name][orders[side]]
    config = model.config
    if model.decoder.logit_bias is not None:
        config = config.model_copy(update={"output_bias": True})
        bias = model.decoder.logit_bias[orders["target"]].clone()
        bias[: len(SPECIAL_TOKENS)] = bias[: len(SPECIAL_TOKENS)].clamp(min=0)  # never generated, but for the end
        weights["decoder.output_bias"] = bias
    renumbered_model = Transformer(config, len(orders["source"]), len(orders["target"]), PAD_ID)
    renumbered_model.load_state_dict(weights)
    for name, buffer in model.named_buffers():  # positions, which a run computes by their formula
        if name.endswith(".positions") and not torch.allclose(buffer, renumbered_model.get_buffer(name), atol=1e-3):
            raise ExportError(f"{place}: its positions are not sinusoidal, as its kind of model has them, but learned")
    return renumbered_model.eval()
