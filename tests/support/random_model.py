"""Models with random weights, as runs that can be exported.

Their answers never end: the special tokens' rows of the target table are zero, so that their logits are exactly 0, far
below the largest of the random ones. So no search ever chooses the end token, without a constraint.
"""

import random
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, processors

from dragoman_training.data.tokenizers import END, END_ID, PAD_ID, SPECIAL_TOKENS, UNKNOWN
from dragoman_training.files import SOURCE_TOKENIZER, TARGET_TOKENIZER
from dragoman_training.model import ModelConfig, Transformer
from dragoman_training.recipe import Recipe, save_recipe
from dragoman_training.run.checkpoint import save_state
from tests.support.model_parts import last_norm

VOCABULARY = 40
SMALL: dict[str, Any] = {
    "d_model": 32,
    "heads": 2,
    "d_ff": 64,
    "encoder_layers": 1,
    "decoder_layers": 2,
    "norm": "pre",
    "max_source_length": 9,
    "max_target_length": 8,
}
LENGTHS = (15, 31)  # of sources and targets of dev, without the end token


def write_run(run: Path, config: ModelConfig, vocabulary: int, seed: int = 1) -> None:
    """Writes what dragoman-train would leave behind, with random weights and two alike tokenizers of made-up words.

    Args:
        run: the directory, made where it is missing.
        vocabulary: tokens of each side, the special ones included.
    """
    run.mkdir(parents=True, exist_ok=True)
    tokenizer = symbol_tokenizer(vocabulary)
    for name in (SOURCE_TOKENIZER, TARGET_TOKENIZER):
        tokenizer.save(str(run / name))
    recipe = {
        "seed": seed,
        "data": {"train": ["dev.tsv"], "dev": ["dev.tsv"]},
        "tokenizers": {"source": {"kind": "symbols"}},
        "model": config.model_dump(),
        "training": {"steps": 1, "batch_tokens": 1, "learning_rate": 1.0},
    }
    save_recipe(Recipe.model_validate(recipe), run / "recipe.yaml")
    draw = random.Random(seed)
    words = [symbol(i) for i in range(len(SPECIAL_TOKENS), vocabulary)]
    lengths = [
        min(n, most - 1) for n, most in zip(LENGTHS, (config.max_source_length, config.max_target_length), strict=True)
    ]
    lines = ["\t".join(" ".join(draw.choices(words, k=length)) for length in lengths) for _ in range(8)]
    (run / "dev.tsv").write_text("".join(f"{line}\n" for line in lines))
    save_state(run / "model.pt", {"model": random_model(config, vocabulary, seed).state_dict(), "steps": [0]})


@torch.no_grad()
def random_model(config: ModelConfig, vocabulary: int, seed: int) -> Transformer:
    """A model whose answers never end and vary."""
    torch.manual_seed(seed)
    model = Transformer(config, vocabulary, vocabulary, PAD_ID).eval()
    model.decoder.projection.weight[: len(SPECIAL_TOKENS)] = 0
    vary_answers(model)
    return model


@torch.no_grad()
def vary_answers(model: Transformer) -> None:
    """Keeps a random model from answering with its own input token for ever.

    It does so where the output projection is tied to the embedding; random signs in the gain of the norm before the
    projection make the two uses of the table unlike each other.
    """
    gain = last_norm(model).weight
    gain.mul_(torch.randint(0, 2, gain.shape) * 2 - 1)


def symbol(index: int) -> str:
    return f"w{index}"


def symbol_tokenizer(vocabulary: int) -> Tokenizer:
    """Words between white space, each a token."""
    words = [*SPECIAL_TOKENS, *(symbol(i) for i in range(len(SPECIAL_TOKENS), vocabulary))]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(single=f"$A {END}", special_tokens=[(END, END_ID)])
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS])
    return tokenizer


def small_run(run: Path, **changes: object) -> Path:
    """Writes what dragoman-train would leave behind of a small model, some of its shape changed.

    Returns:
        the run's directory.
    """
    run.mkdir(parents=True, exist_ok=True)
    for name in (SOURCE_TOKENIZER, TARGET_TOKENIZER):
        symbol_tokenizer(VOCABULARY).save(str(run / name))
    config = ModelConfig.model_validate(SMALL | changes)
    recipe = {
        "data": {"train": ["train.tsv"], "dev": ["dev.tsv"]},
        "tokenizers": {"joint": True, "source": {"kind": "symbols"}},
        "model": config.model_dump(),
        "training": {"steps": 1, "batch_tokens": 1, "learning_rate": 1.0},
    }
    save_recipe(Recipe.model_validate(recipe), run / "recipe.yaml")
    draw = random.Random(1)
    words = [symbol(i) for i in range(len(SPECIAL_TOKENS), VOCABULARY)]
    pairs = ["\t".join(" ".join(draw.choices(words, k=3)) for _ in range(2)) for _ in range(8)]
    (run / "dev.tsv").write_text("".join(f"{pair}\n" for pair in pairs))
    save_state(run / "model.pt", {"model": random_model(config, VOCABULARY, seed=1).state_dict(), "steps": [0]})
    return run
