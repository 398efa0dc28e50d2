"""Small models with random weights, as runs that can be exported."""

import random
from pathlib import Path
from typing import Any

from dragoman_training.data.tokenizers import SPECIAL_TOKENS
from dragoman_training.files import SOURCE_TOKENIZER, TARGET_TOKENIZER
from dragoman_training.model import ModelConfig
from dragoman_training.recipe import Recipe, save_recipe
from dragoman_training.run.checkpoint import save_state
from tests.support.random_model import random_model, symbol, symbol_tokenizer

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
