"""The workload of all contenders: the same texts with the same limits."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dragoman.v1 import generation_pb2 as pb
from dragoman_server.bundle.load import Bundle, BundleError

ROOT = Path(__file__).resolve().parents[2]
TEST_WORDS = ROOT.parent / "shared" / "data" / "g2p-cmudict" / "g014b2b.test"
SEED = 1


@dataclass(frozen=True)
class Workload:
    """Inputs for one model.

    Attributes:
        title: Description of the inputs.
        texts: Texts within the model's limits, distinct if there are enough.
        source_ids, source_tokens: Ids and tokens of the texts from the bundle's tokenizer, the end token included.
        max_new_tokens: The most tokens to generate.
        use_shortlist: Whether the model's lexical shortlist is used; None as the bundle says.
    """

    title: str
    texts: list[str]
    source_ids: list[list[int]]
    source_tokens: list[list[str]]
    max_new_tokens: int
    use_shortlist: bool | None = None

    def mean_steps(self, answers: Sequence[Sequence[int]]) -> float:
        """Mean tokens of answers whose end token is not among them, but counted where the model produced it."""
        return sum(min(len(ids) + 1, self.max_new_tokens) for ids in answers) / len(answers)

    def unary(self, *, tokens: bool = False) -> list[bytes]:
        """Serialised GenerateRequests, one a text; with `tokens` the answers hold token ids."""
        options, details = self._options(1), pb.Details(tokens=True) if tokens else None
        return [
            pb.GenerateRequest(input=pb.Input(text=text), options=options, details=details).SerializeToString()
            for text in self.texts
        ]

    def defaults(self) -> bytes:
        """Returns a serialized GenerateRequest: what all items of a GenerateMany call have in common."""
        return pb.GenerateRequest(options=self._options(1)).SerializeToString()

    def batches(self, size: int, beam: int = 1) -> list[bytes]:
        """Returns serialized GenerateBatchRequests of `size` texts each."""
        options = self._options(beam)
        whole = len(self.texts) - len(self.texts) % size
        return [
            pb.GenerateBatchRequest(
                inputs=[pb.Input(text=text) for text in self.texts[i : i + size]], options=options
            ).SerializeToString()
            for i in range(0, whole, size)
        ]

    def _options(self, beam: int) -> pb.GenerationOptions:
        """Returns options with CTranslate2's end of a beam search, which is our early stopping."""
        options = pb.GenerationOptions(max_new_tokens=self.max_new_tokens, use_shortlist=self.use_shortlist)
        if beam > 1:
            options.MergeFrom(pb.GenerationOptions(beam_size=beam, length_penalty=1.0, early_stopping=True))
        return options


def real_words(bundle: Bundle, count: int) -> Workload:
    """Returns words of the CMU dictionary's test set if it is available, else the bundle's examples, repeated."""
    limit = bundle.manifest.limits.max_target_tokens
    if TEST_WORDS.exists():
        lines = TEST_WORDS.read_text(encoding="utf-8").splitlines()
        words = sorted({line.split()[0] for line in lines if line.strip()})
        random.Random(SEED).shuffle(words)
        return encoded(bundle, "words of the CMU dictionary's test set", words[:count], limit)
    examples = bundle.manifest.examples
    if not examples:
        raise BundleError(
            f"{bundle.path}: the manifest has no examples, and {TEST_WORDS} is not there to take words from"
        )
    repeated = [examples[i % len(examples)] for i in range(count)]
    return encoded(bundle, f"the bundle's {len(examples)} examples, repeated", repeated, limit)


def random_symbols(bundle: Bundle, count: int, source_tokens: int, target_tokens: int) -> Workload:
    """Returns texts of exactly `source_tokens` tokens, end token included, with answers of exactly `target_tokens`."""
    draw = random.Random(SEED)
    texts = [random_text(bundle, source_tokens - 1, draw) for _ in range(count)]
    title = f"random symbols, {source_tokens} source and {target_tokens} target tokens each"
    return encoded(bundle, title, texts, target_tokens)


def random_text(bundle: Bundle, symbols: int, draw: random.Random) -> str:
    """Returns `symbols` random words of the model."""
    tokens = bundle.manifest.tokens
    special = {tokens.pad, tokens.unknown, tokens.begin, tokens.end}
    ids = [i for i in range(bundle.manifest.shape.source_vocabulary) if i not in special]
    return " ".join(bundle.source_tokenizer.id_to_token(i) or "" for i in draw.choices(ids, k=symbols))


def encoded(bundle: Bundle, title: str, texts: list[str], max_new_tokens: int) -> Workload:
    """Returns those texts that have no unknown token."""
    encodings = bundle.source_tokenizer.encode_batch(texts)
    known = [e for e in encodings if bundle.manifest.tokens.unknown not in e.ids]
    kept = [t for t, e in zip(texts, encodings, strict=True) if bundle.manifest.tokens.unknown not in e.ids]
    return Workload(title, kept, [e.ids for e in known], [e.tokens for e in known], max_new_tokens)
