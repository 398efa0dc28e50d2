"""`python -m dragoman_training.shrink`: writes a run with a smaller model, from which a student starts."""

import argparse
import random
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from dragoman_training.data.batches import EncodedPair
from dragoman_training.data.encode import encode_pairs
from dragoman_training.data.pairs import read_pairs_file
from dragoman_training.errors import TrainingError
from dragoman_training.evaluation.evaluate import negative_log_likelihood
from dragoman_training.files import DEV_FILE
from dragoman_training.model import Transformer
from dragoman_training.model.config import ModelConfig
from dragoman_training.run.derived import check_absent, write_derived_run
from dragoman_training.run.load import Run, load_run
from dragoman_training.shrink.activity import measure_activity
from dragoman_training.shrink.layers import drop_layers
from dragoman_training.shrink.narrow import narrow

PAIRS = 1000
BATCH_TOKENS = 4000
SIZES = {
    "d_model": "width of the model",
    "heads": "attention heads (default: as many as the width has room for)",
    "d_ff": "units of a feed-forward network",
    "encoder_layers": "layers of the encoder",
    "decoder_layers": "layers of the decoder",
}


def shrink(path: Path, out: Path, sizes: dict[str, int], pairs_file: Path | None = None) -> None:
    """Writes a finished run with a smaller model, computed from that of another run and a thousand pairs.

    Args:
        path: The other run.
        sizes: Sizes of the smaller model, of SIZES; what is missing stays. Heads keep their width, so
            fewer dimensions have fewer of them by default.
        pairs_file: The pairs, source<TAB>target; by default the dev set of the run.

    Raises:
        TrainingError: `out` exists, the run can't be loaded or made smaller, a size is larger than before, or there are
            no pairs.
    """
    check_absent(out)
    run = load_run(path)
    model, before = run.model, run.recipe.model
    after = _smaller(run, sizes)
    pairs = _sample(run, pairs_file)
    special = run.tokenizers.special
    loss = partial(
        negative_log_likelihood, pairs=pairs, batch_tokens=BATCH_TOKENS, before_step=lambda: None, special=special
    )
    losses = {"before": loss(model)}
    print(f"loss of {path} on {len(pairs):,} pairs: {losses['before']:.3f}")
    kept = drop_layers(model, after.encoder_layers, after.decoder_layers, lambda: loss(model), print)
    weights, report = model.state_dict(), dict[str, Any]()
    if (before.d_model, before.heads, before.d_ff) != (after.d_model, after.heads, after.d_ff):
        activity = measure_activity(model, pairs, BATCH_TOKENS, special)
        narrowed = narrow(weights, before, after, activity)
        weights = narrowed.weights
        report["kept_of_streams"] = round(narrowed.kept, 4)
        print(f"{before.d_model} to {after.d_model} dimensions, which hold {narrowed.kept:.1%} of the residual streams")
        smaller = Transformer(after, *run.tokenizers.vocabularies, special.pad)
        smaller.load_state_dict(weights)
        model = smaller.eval()
    losses["after"] = loss(model)
    print(f"loss of {out}: {losses['after']:.3f}; train it with --init-from {out}")
    report |= {"run": path.name, "encoder_layers": kept[0], "decoder_layers": kept[1], "loss": losses}
    recipe = run.recipe.model_copy(update={"model": after})
    write_derived_run(out, run, recipe, weights, {"shrunk": report})


def _smaller(run: Run, sizes: dict[str, int]) -> ModelConfig:
    """Returns the architecture of the smaller model."""
    before = run.recipe.model
    _check_kind(run)
    d_head = before.encoder_layer.d_head
    width = min(sizes.get("d_model", before.d_model), before.d_model)
    sizes = {"heads": max(1, before.heads * width // before.d_model), **sizes}
    for name, value in sizes.items():
        if not 1 <= value <= (least := getattr(before, name)):
            raise TrainingError(f"--{name.replace('_', '-')}: expected 1 to {least}, as in {run.path}, got {value}")
    document = {**before.model_dump(), **sizes, "d_head": d_head}
    if document["d_model"] == document["heads"] * d_head:
        document["d_head"] = None
    try:
        return ModelConfig(**document)
    except ValidationError as error:
        raise TrainingError(f"the smaller model: {error.errors()[0]['msg']}") from None


def _check_kind(run: Run) -> None:
    model = run.recipe.model
    expected = {
        "norm": "pre",
        "embedding_norm": "none",
        "decoder_embedding_norm": None,
        "output_scale": False,
        "decoder_heads": None,
        "decoder_d_ff": None,
    }
    for name, value in expected.items():
        if (found := getattr(model, name)) != value:
            raise TrainingError(f"{run.path}: model.{name} is {found}; only models with {value} can be made smaller")
    if model.positions.startswith("relative"):
        raise TrainingError(f"{run.path}: model.positions is {model.positions}; only absolute ones can be made smaller")
    if model.norm_kind == "layer" and not model.bias:
        raise TrainingError(
            f"{run.path}: model.bias is false; with LayerNorm, only models with biases can be made smaller"
        )


def _sample(run: Run, file: Path | None) -> Sequence[EncodedPair]:
    """Returns a thousand pairs of a file or of the dev set that fit the model, the same ones every time."""
    if file is None and not (run.path / DEV_FILE).exists():
        raise TrainingError(f"{run.path} has no dev set; name a file of source<TAB>target lines with --pairs")
    pairs = run.dev_pairs() if file is None else read_pairs_file(file)
    fitting = [encoded for _, encoded, problem in encode_pairs(run.recipe, run.tokenizers, pairs) if problem is None]
    if not fitting:
        raise TrainingError(f"{file or run.path / DEV_FILE}: expected pairs, source<TAB>target, that fit the model")
    return random.Random(0).sample(fitting, min(PAIRS, len(fitting)))


def main(arguments: list[str] | None = None) -> int:
    """Runs the command and returns its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m dragoman_training.shrink",
        description="Makes a smaller model of a trained one, without its least important layers, heads, units and "
        "dimensions; a size that is not given stays. It answers badly, but a student that starts from it learns in a "
        "fraction of the time.",
    )
    parser.add_argument("run", type=Path, help="run with the trained model")
    parser.add_argument("out", type=Path, help="run to write, for dragoman-train --init-from")
    for name, description in SIZES.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, metavar="N", help=description)
    parser.add_argument(
        "--pairs", type=Path, metavar="FILE", help="pairs to try the model on (default: the dev set of the run)"
    )
    options = parser.parse_args(arguments)
    sizes = {name: value for name in SIZES if (value := getattr(options, name)) is not None}
    try:
        shrink(options.run, options.out, sizes, options.pairs)
    except (TrainingError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0
