"""Small models whose answers end, vary and are clear: few of their probabilities are close to each other."""

from pathlib import Path

import torch

from dragoman_training.data.tokenizers import END_ID, PAD_ID
from dragoman_training.model import ModelConfig, Transformer
from dragoman_training.run.checkpoint import save_state
from tests.support.model_parts import decoder_layers, last_norm
from tests.support.random_model import write_run

MAX_SOURCE, MAX_TARGET = 9, 16
CONFIG = ModelConfig(
    d_model=32,
    heads=2,
    d_ff=48,
    encoder_layers=1,
    decoder_layers=2,
    norm="pre",
    share_embeddings="none",
    max_source_length=MAX_SOURCE,
    max_target_length=MAX_TARGET,
)


# Vocabulary, spread, ending and seed with which answers of all lengths come, most of them unlike each other.
NARROW = (40, 2.5, 0.0, 4)
WIDE = (100, 2.2, 2.0, 6)  # beyond the candidates that a step is asked for at first


def clear_run(run: Path, vocabulary: int, spread: float, ending: float, seed: int) -> Path:
    """Writes what dragoman-train would leave behind of a `clear_model`; gives the run's directory."""
    write_run(run, CONFIG, vocabulary)
    save_state(run / "model.pt", {"model": clear_model(vocabulary, spread, ending, seed).state_dict(), "steps": [0]})
    return run


@torch.no_grad()
def clear_model(vocabulary: int, spread: float, ending: float, seed: int) -> Transformer:
    """A model with random weights.

    Args:
        spread: about the standard deviation of logits.
        ending: added to the end token's logit.
    """
    torch.manual_seed(seed)
    model = Transformer(CONFIG, vocabulary, vocabulary, PAD_ID).eval()
    for parameter in model.parameters():
        parameter.add_(torch.randn_like(parameter) * 0.2)
    # What is read from the source weighs more than in a model that has just been made.
    for layer in decoder_layers(model):
        layer.cross_attention.key_value.weight.mul_(2)
        layer.cross_attention.output.weight.mul_(4)
    weights = torch.randn(vocabulary, CONFIG.d_model) * (spread / CONFIG.d_model**0.5)
    weights[END_ID] *= 2
    # The last norm's bias is a direction that only the end token answers to.
    direction = torch.nn.functional.normalize(torch.randn(CONFIG.d_model), dim=0)
    weights -= torch.outer(weights @ direction, direction)
    weights[END_ID] += direction * (ending / 5)
    last_norm(model).bias.copy_(direction * 5)
    model.decoder.projection.weight.copy_(weights)
    return model
