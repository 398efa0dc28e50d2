"""Models with random weights, as runs that can be exported.

Their answers never end: the special tokens' rows of the target table are zero, so their logits are exactly 0, far below
the largest random ones. So no search chooses the end token unless a constraint forces it.
"""

import random
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, processors

from dragoman_training.data.tokenizers import END, END_ID, PAD_ID, SPECIAL_TOKENS, UNKNOWN
from dragoman_training.files import SOURCE_TOKENIZER, TARGET_TOKENIZER
from dragoman_training.model import ModelConfig, Transformer
from dragoman_training.model.parts import last_norm
from dragoman_training.recipe import Recipe, save_recipe
from dragoman_training.run.checkpoint import save_state

VOCABULARY = 40
SMALL: dict[str, Any] = {
    "d_model": 32,
    "heads": 2,
    "d_ff": 64,
    "activation": "gelu",
    "encoder_layers": 1,
    "decoder_layers": 2,
    "norm": "pre",
    "max_source_length": 9,
    "max_target_length": 8,
}
LENGTHS = (15, 31)  # tokens of the sources and targets of dev, without the end token


def write_run(
    run: Path,
    config: ModelConfig,
    vocabulary: int,
    seed: int = 1,
    *,
    lengths: tuple[int, int] = LENGTHS,
    train: str = "dev.tsv",
    joint: bool = False,
) -> None:
    """Writes a run as dragoman-train would, with random weights and the same tokenizer of made-up words on both sides.

    Args:
        run: Directory of the run, made if it is missing.
        config: Shape of the model.
        vocabulary: Tokens of each side, the special ones included.
        seed: Seed of weights and data.
        lengths: Tokens of the sources and targets of dev, capped at the model's limits.
        train: Name of the training data in the recipe.
        joint: Whether the recipe asks for one tokenizer.
    """
    run.mkdir(parents=True, exist_ok=True)
    for name in (SOURCE_TOKENIZER, TARGET_TOKENIZER):
        symbol_tokenizer(vocabulary).save(str(run / name))
    recipe = {
        "seed": seed,
        "data": {"train": [train], "dev": ["dev.tsv"]},
        "tokenizers": {"joint": joint, "source": {"kind": "symbols"}},
        "model": config.model_dump(),
        "training": {"steps": 1, "batch_tokens": 1, "learning_rate": 1.0},
    }
    save_recipe(Recipe.model_validate(recipe), run / "recipe.yaml")
    draw = random.Random(seed)
    words = [symbol(i) for i in range(len(SPECIAL_TOKENS), vocabulary)]
    limits = config.max_source_length, config.max_target_length
    counts = [min(length, limit - 1) for length, limit in zip(lengths, limits, strict=True)]
    lines = ["\t".join(" ".join(draw.choices(words, k=count)) for count in counts) for _ in range(8)]
    (run / "dev.tsv").write_text("".join(f"{line}\n" for line in lines))
    save_state(run / "model.pt", {"model": random_model(config, vocabulary, seed).state_dict(), "steps": [0]})


def small_run(run: Path, **changes: object) -> Path:
    """Writes a run of a small model, with changes to its shape and no training data; returns its directory."""
    write_run(
        run, ModelConfig.model_validate(SMALL | changes), VOCABULARY, lengths=(3, 3), train="train.tsv", joint=True
    )
    return run


@torch.no_grad()
def random_model(config: ModelConfig, vocabulary: int, seed: int) -> Transformer:
    """Returns a model whose answers vary and never end."""
    torch.manual_seed(seed)
    model = Transformer(config, vocabulary, vocabulary, PAD_ID).eval()
    model.decoder.projection.weight[: len(SPECIAL_TOKENS)] = 0
    vary_answers(model)
    return model


@torch.no_grad()
def vary_answers(model: Transformer) -> None:
    """Keeps a random model from repeating its own input token forever.

    It does so if the output projection is tied to the embedding. Random signs in the gain of the norm before the
    projection make the two uses of the table differ.
    """
    gain = last_norm(model).weight
    gain.mul_(torch.randint(0, 2, gain.shape) * 2 - 1)


def symbol(index: int) -> str:
    return f"w{index}"


def symbol_tokenizer(vocabulary: int) -> Tokenizer:
    """Returns a tokenizer of words between white space, each a token."""
    words = [*SPECIAL_TOKENS, *(symbol(i) for i in range(len(SPECIAL_TOKENS), vocabulary))]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(single=f"$A {END}", special_tokens=[(END, END_ID)])
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS])
    return tokenizer
