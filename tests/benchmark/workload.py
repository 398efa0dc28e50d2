"""What is asked of all contenders: the same texts, the same limits."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from dragoman.v1 import generation_pb2 as pb
from server.bundle.load import Bundle, BundleError
from tests.benchmark.beam import Beam

ROOT = Path(__file__).resolve().parents[2]
TEST_WORDS = ROOT.parent / "shared" / "data" / "g2p-cmudict" / "g014b2b.test"
SEED = 1


@dataclass(frozen=True)
class Workload:
    """Inputs for one model.

    Attributes:
        title: what they are, in words.
        texts: distinct where there are enough of them; all within the model's limits.
        source_ids, source_tokens: the texts as the bundle's tokenizer encodes them, the end token included.
        max_new_tokens: generated at most.
        references: right answers, any of them, by text; empty where they are not known.
    """

    title: str
    texts: list[str]
    source_ids: list[list[int]]
    source_tokens: list[list[str]]
    max_new_tokens: int
    references: dict[str, list[str]] = field(default_factory=dict)

    @property
    def mean_source_tokens(self) -> float:
        return sum(map(len, self.source_ids)) / len(self.source_ids)

    def mean_steps(self, answers: Sequence[Sequence[int]]) -> float:
        """Mean tokens of answers whose end token is not among them, but counted where the model produced it."""
        return sum(min(len(ids) + 1, self.max_new_tokens) for ids in answers) / len(answers)

    def unary(self, beam: Beam | None = None, *, tokens: bool = False) -> list[bytes]:
        """Serialised GenerateRequests, one a text; greedy without a beam; with `tokens` the answers hold token ids."""
        options, details = self._options(beam), pb.Details(tokens=True) if tokens else None
        return [
            pb.GenerateRequest(input=pb.Input(text=text), options=options, details=details).SerializeToString()
            for text in self.texts
        ]

    def batches(self, size: int, beam: Beam | None = None) -> list[bytes]:
        """Serialised GenerateBatchRequests of `size` texts each."""
        options = self._options(beam)
        whole = len(self.texts) - len(self.texts) % size
        return [
            pb.GenerateBatchRequest(
                inputs=[pb.Input(text=text) for text in self.texts[i : i + size]], options=options
            ).SerializeToString()
            for i in range(0, whole, size)
        ]

    def _options(self, beam: Beam | None) -> pb.GenerationOptions:
        if beam is not None:
            return beam.message(self.max_new_tokens)
        return pb.GenerationOptions(max_new_tokens=self.max_new_tokens)


def real_words(bundle: Bundle, count: int) -> Workload:
    """Words of the CMU dictionary's test set where that is at hand, else the bundle's examples over and over."""
    limit = bundle.manifest.limits.max_target_tokens
    if TEST_WORDS.exists():
        references: dict[str, list[str]] = {}
        for line in TEST_WORDS.read_text(encoding="utf-8").splitlines():
            if line.strip():
                word, phones = line.split(maxsplit=1)
                references.setdefault(word, []).append(" ".join(phones.split()))
        words = sorted(references)
        random.Random(SEED).shuffle(words)
        workload = encoded(bundle, "words of the CMU dictionary's test set", words[:count], limit)
        return replace(workload, references={text: references[text] for text in workload.texts})
    examples = bundle.manifest.examples
    if not examples:
        raise BundleError(
            f"{bundle.path}: the manifest has no examples, and {TEST_WORDS} is not there to take words from"
        )
    repeated = [examples[i % len(examples)] for i in range(count)]
    return encoded(bundle, f"the bundle's {len(examples)} examples, repeated", repeated, limit)


def random_symbols(bundle: Bundle, count: int, source_tokens: int, target_tokens: int) -> Workload:
    """Texts of exactly `source_tokens` tokens (the end token counted), answered by exactly `target_tokens`."""
    draw = random.Random(SEED)
    texts = [random_text(bundle, source_tokens - 1, draw) for _ in range(count)]
    title = f"random symbols, {source_tokens} source and {target_tokens} target tokens each"
    return encoded(bundle, title, texts, target_tokens)


def random_text(bundle: Bundle, symbols: int, draw: random.Random) -> str:
    """So many of the model's words."""
    tokens = bundle.manifest.tokens
    special = {tokens.pad, tokens.unknown, tokens.begin, tokens.end}
    ids = [i for i in range(bundle.manifest.shape.source_vocabulary) if i not in special]
    return " ".join(bundle.source_tokenizer.id_to_token(i) or "" for i in draw.choices(ids, k=symbols))


def encoded(bundle: Bundle, title: str, texts: list[str], max_new_tokens: int) -> Workload:
    """Of those texts that have no unknown token."""
    encodings = bundle.source_tokenizer.encode_batch(texts)
    known = [e for e in encodings if bundle.manifest.tokens.unknown not in e.ids]
    kept = [t for t, e in zip(texts, encodings, strict=True) if bundle.manifest.tokens.unknown not in e.ids]
    return Workload(title, kept, [e.ids for e in known], [e.tokens for e in known], max_new_tokens)
