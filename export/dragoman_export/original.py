"""The model that a bundle is made from, trained here or imported."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from dragoman_server.bundle.manifest import Generation, Limits, SourcePart, SpecialTokens, Text
from dragoman_training.data.pairs import Pair
from dragoman_training.model import Transformer
from dragoman_training.recipe import Metric


@dataclass(frozen=True)
class Vocabulary:
    """Converts text to ids and back.

    Attributes:
        tokenizer: Vocabulary and decoder; without a SentencePiece model, also segments texts.
        pieces: SentencePiece model whose pieces are looked up in the vocabulary, or None.
    """

    tokenizer: Tokenizer
    pieces: Path | None = None


@dataclass(frozen=True)
class TargetFrame:
    """The ids before and after those of a target that an imported model is trained on, after its first input."""

    before: Sequence[SourcePart]
    after: Sequence[SourcePart]


@dataclass(frozen=True)
class Original:
    """The model that a bundle is made from, and the data to check the bundle with.

    Attributes:
        place: Where it was read, for messages.
        model: The model, in evaluation mode.
        source, target: Vocabulary of each side.
        tokens: Ids of the special tokens.
        limits: Longest sequences.
        sources: Texts to compare answers of model and graphs on.
        typical: Whether these are inputs that the model is meant for.
        data: Pairs to measure quality on, by name of the data set.
        longest: More pairs, possibly longer, to calibrate integers with.
        metrics: Metrics of quality.
        training_pairs: Reads the pairs that the model was trained on, none of which is in `data`; None if there are
            none. Raises ExportError if they cannot be read.
        unseen_source_tokens: Source ids that the training data lacks.
        provenance: What the manifest keeps under `training`.
        text, generation, origin: Of an imported model, as in the manifest.
        targets: What surrounds the targets of an imported model in training.
        license: License of the weights; empty if unknown.
    """

    place: str
    model: Transformer
    source: Vocabulary
    target: Vocabulary
    tokens: SpecialTokens
    limits: Limits
    sources: Sequence[str]
    typical: bool = True
    data: Mapping[str, Sequence[Pair]] = field(default_factory=dict)
    longest: Sequence[Pair] = ()
    metrics: Sequence[Metric] = ()
    training_pairs: Callable[[], Sequence[Pair]] | None = None
    unseen_source_tokens: Sequence[int] = ()
    provenance: Mapping[str, Any] = field(default_factory=dict)
    text: Text | None = None
    generation: Generation | None = None
    origin: Mapping[str, str] = field(default_factory=dict)
    targets: TargetFrame | None = None
    license: str = ""
