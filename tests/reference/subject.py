"""Models to decode with: small random ones with clear decisions, and runs of dragoman-train for the reference."""

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import torch

from dragoman_server.core.search_options import SearchOptions
from dragoman_training.data.tokenizers import BEGIN_ID, END_ID, PAD_ID
from dragoman_training.model import ModelConfig, Transformer
from dragoman_training.model.parts import decoder_layers, last_norm
from dragoman_training.run.checkpoint import save_state
from dragoman_training.run.load import Run, load_run
from tests.reference.decoding import Decoded, decode
from tests.reference.model import Forward, ReferenceModel
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


# Vocabulary, spread, ending and seed that give answers of all lengths, most of them different.
NARROW = (40, 2.5, 0.0, 4)
WIDE = (100, 2.2, 2.0, 6)  # more than the candidates that sampling requests first


def clear_run(run: Path, vocabulary: int, spread: float, ending: float, seed: int) -> Path:
    """Writes a `clear_model` as a run of dragoman-train, and returns the directory of the run."""
    write_run(run, CONFIG, vocabulary)
    save_state(run / "model.pt", {"model": clear_model(vocabulary, spread, ending, seed).state_dict(), "steps": [0]})
    return run


@torch.no_grad()
def clear_model(vocabulary: int, spread: float, ending: float, seed: int) -> Transformer:
    """Returns a random model whose answers end, vary and are clear: few of their probabilities are close to each other.

    Args:
        spread: Approximate standard deviation of logits.
        ending: Added to the end token's logit.
    """
    torch.manual_seed(seed)
    model = Transformer(CONFIG, vocabulary, vocabulary, PAD_ID).eval()
    for parameter in model.parameters():
        parameter.add_(torch.randn_like(parameter) * 0.2)
    # The source matters more than in a model with initial weights.
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


class Subject:
    """A run of dragoman-train as the reference decodes it.

    Attributes:
        source_vocabulary, target_vocabulary: Vocabulary sizes.
        max_source, max_target: Length limits in tokens, the former with the end token, the latter without.
    """

    end = END_ID

    def __init__(self, run: Path) -> None:
        self._path = run
        config = self._run.recipe.model
        self.max_source, self.max_target = config.max_source_length, config.max_target_length
        self.source_vocabulary = self._run.tokenizers.source.get_vocab_size()
        self.target_vocabulary = self._run.tokenizers.target.get_vocab_size()
        self._greedy: dict[tuple[int, ...], list[int]] = {}

    @cached_property
    def _run(self) -> Run:
        return load_run(self._path)

    @cached_property
    def _model(self) -> ReferenceModel:
        return ReferenceModel(self._run.model, BEGIN_ID)

    def text(self, ids: list[int]) -> str:
        text: str = self._run.tokenizers.target.decode(ids)
        return text

    def forward(self, source: Sequence[int]) -> Forward:
        return self._model.forward(source)

    def decode(self, source: Sequence[int], options: SearchOptions) -> Decoded:
        return decode(self.forward(source), options, self.end, self.text)

    def usual(self, source: Sequence[int]) -> list[int]:
        """Returns the greedy answer, for options that should affect it."""
        key = tuple(source)
        if key not in self._greedy:
            self._greedy[key] = self.decode(source, SearchOptions(self.max_target)).hypotheses[0].ids
        return self._greedy[key]
