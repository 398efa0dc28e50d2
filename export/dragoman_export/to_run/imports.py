"""Makes a training run from a published model: with its own vocabulary, special tokens, languages and settings."""

import shutil
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from dragoman_export.bundle.options import ImportOptions
from dragoman_export.errors import ExportError
from dragoman_export.imports import read_import
from dragoman_export.original import Original
from dragoman_export.to_run.writing import check_free, write_run
from dragoman_training.data.imported import ImportedRules
from dragoman_training.data.tokenizers import save_tokenizer
from dragoman_training.files import SOURCE_PIECES, SOURCE_TOKENIZER, TARGET_PIECES, TARGET_TOKENIZER
from dragoman_training.model import Transformer
from dragoman_training.recipe import Recipe


def run_of_import(options: ImportOptions, run: Path, say: Callable[[str], None]) -> None:
    """Writes a finished run with the model and the tokenizers of a published model.

    Args:
        options: The model.
        run: Directory to make.
        say: Prints a line for the user.

    Raises:
        ExportError: The model cannot be read, works in a way that training cannot continue, or the directory exists.
    """
    check_free(run)
    original = read_import(options, say)
    rules = _rules(original)
    config = original.model.config
    if original.model.decoder.logit_bias is not None:
        config = config.model_copy(update={"output_bias": True})
    shared = config.share_embeddings in ("inputs", "all")
    recipe = Recipe.model_validate(
        {
            "data": {"train": ["imported"]},  # only to make the recipe valid: there is no such data
            "tokenizers": {"joint": shared, "source": {"kind": "imported"}},
            "model": config.model_dump(),
            "training": {"steps": 1, "batch_tokens": 1, "learning_rate": 1e-4},
        }
    )

    def write_texts(folder: Path) -> None:
        rules.save(folder)
        for vocabulary, name, pieces in (
            (original.source, SOURCE_TOKENIZER, SOURCE_PIECES),
            (original.target, TARGET_TOKENIZER, TARGET_PIECES),
        ):
            save_tokenizer(vocabulary.tokenizer, folder / name)
            if vocabulary.pieces is not None:
                shutil.copyfile(vocabulary.pieces, folder / pieces)

    weights = _weights(original, Transformer(config, *rules.vocabularies, rules.tokens.pad))
    origin = {"name": original.place, **original.origin}
    write_run(run, recipe, weights, [], [], {"origin": origin}, write_texts)


def _rules(original: Original) -> ImportedRules:
    """Returns the rules of a model.

    Raises:
        ExportError: Its targets in training are not those that it generates.
    """
    text, generation, targets = original.text, original.generation, original.targets
    assert text is not None
    assert generation is not None
    assert targets is not None
    forced = "target_language" if text.forces_language else generation.forced_first
    problem = ""
    if forced is not None and [*targets.before[:1]] != [forced]:
        problem = "it generates targets that start with a forced token, but its tokenizer makes other ones for training"
    elif original.tokens.end not in targets.after:
        problem = "its tokenizer ends no target with the end token, so that it would never learn to end"
    if problem:
        raise ExportError(f"{original.place}: {problem}, so runs cannot continue it")
    model = original.model
    return ImportedRules.model_validate(
        {
            "tokens": original.tokens.model_dump(),
            "vocabularies": (model.encoder.embedding.tokens.num_embeddings, model.decoder.projection.out_features),
            "text": text.model_dump(),
            "target_before": targets.before,
            "target_after": targets.after,
            "manifest": {
                "generation": generation.model_dump(mode="json"),
                "origin": dict(original.origin),
                "license": original.license,
            },
        }
    )


def _weights(original: Original, trained: Transformer) -> dict[str, Tensor]:
    """Returns the weights of the model in training.

    Args:
        trained: Such a model, with any weights.

    Raises:
        ExportError: The model has positions that a run would compute otherwise.
    """
    weights: dict[str, Tensor] = dict(original.model.state_dict())
    if original.model.decoder.logit_bias is not None:
        weights["decoder.output_bias"] = original.model.decoder.logit_bias
    for name, buffer in original.model.named_buffers():  # positions, which a run computes by their formula
        if name.endswith(".positions") and not torch.allclose(buffer, trained.get_buffer(name), atol=1e-3):
            raise ExportError(
                f"{original.place}: its positions are not sinusoidal, as its kind of model has them, but learned"
            )
    trained.load_state_dict(weights)  # they are all of them
    return weights
