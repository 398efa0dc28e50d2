"""A model to be decoded with, for the reference and for what is compared with it."""

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

from dragoman_server.core.search_options import SearchOptions
from dragoman_training.data.tokenizers import BEGIN_ID, END_ID
from dragoman_training.run.load import Run, load_run
from tests.reference.decoding import Decoded, decode
from tests.reference.model import Forward, ReferenceModel


class Subject:
    """A run of dragoman-train as the reference sees it.

    Attributes:
        source_vocabulary, target_vocabulary: sizes.
        max_source, max_target: tokens; the former with the end token, the latter without.
    """

    end = END_ID

    def __init__(self, run: Path) -> None:
        self._path = run
        config = self._run.recipe.model
        self.max_source, self.max_target = config.max_source_length, config.max_target_length
        self.source_vocabulary = self._run.source_tokenizer.get_vocab_size()
        self.target_vocabulary = self._run.target_tokenizer.get_vocab_size()
        self._greedy: dict[tuple[int, ...], list[int]] = {}

    @cached_property
    def _run(self) -> Run:
        return load_run(self._path)

    @cached_property
    def _model(self) -> ReferenceModel:
        return ReferenceModel(self._run.model, BEGIN_ID)

    def text(self, ids: list[int]) -> str:
        text: str = self._run.target_tokenizer.decode(ids)
        return text

    def forward(self, source: Sequence[int]) -> Forward:
        return self._model.forward(source)

    def decode(self, source: Sequence[int], options: SearchOptions) -> Decoded:
        return decode(self.forward(source), options, self.end, self.text)

    def usual(self, source: Sequence[int]) -> list[int]:
        """What the model says of itself, for options that shall meet it."""
        key = tuple(source)
        if key not in self._greedy:
            self._greedy[key] = self.decode(source, SearchOptions(self.max_target)).hypotheses[0].ids
        return self._greedy[key]
