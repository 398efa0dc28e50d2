"""Tokenizers: trained with Hugging Face `tokenizers` and saved in its JSON format."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from dragoman_training.data.normalization import build_normalizer
from dragoman_training.errors import DataError
from dragoman_training.files import write_text
from dragoman_training.recipe import TokenizerConfig

PAD, UNKNOWN, BEGIN, END = "<pad>", "<unk>", "<s>", "</s>"
SPECIAL_TOKENS = [PAD, UNKNOWN, BEGIN, END]
PAD_ID, UNKNOWN_ID, BEGIN_ID, END_ID = range(4)
NEVER_GENERATED = (PAD_ID, UNKNOWN_ID, BEGIN_ID)  # forbidden to trained models
BYTE_TOKENS = [f"<0x{byte:02X}>" for byte in range(256)]
RESERVED_ALPHABET = set("".join(SPECIAL_TOKENS + BYTE_TOKENS))
CLOSED_VOCABULARY = ("characters", "symbols")  # kinds whose token counts are known before training
MAX_PIECE_LENGTH = 16  # characters of a bpe or unigram piece
# NOTE: Characters of a word during training. `tokenizers` trains bpe in time quadratic in the longest word, and its
# unigram trainer overflows the stack on words of 100,000 characters.
MAX_WORD_LENGTH = 256
TEXTS_AT_ONCE = 1000


@dataclass(frozen=True)
class SpecialIds:
    """Ids of the special tokens: in sources and targets, and what the decoder's first input is.

    Those of an imported model may be the same, as where its decoder begins with the end token.
    """

    pad: int = PAD_ID
    unknown: int = UNKNOWN_ID
    begin: int = BEGIN_ID
    end: int = END_ID


OWN_IDS = SpecialIds()  # of models that are not imported


class Texts(Protocol):
    """Texts that can be read several times."""

    def __iter__(self) -> Iterator[str]: ...


def train_tokenizer(
    config: TokenizerConfig, texts: Texts, key: str = "tokenizers.source", tokens: Sequence[str] = ()
) -> Tokenizer:
    """Trains a tokenizer of a recipe.

    The special tokens have ids 0 to 3, and every encoded text ends with the end token.

    Args:
        config: Kind, vocabulary size and normalization.
        texts: Training texts of this side, which are read several times.
        key: Recipe key for error messages.
        tokens: More tokens, which are recognized in a text, with the white space that follows.

    Raises:
        DataError: No such tokenizer can be trained on these texts.
    """
    if config.kind in CLOSED_VOCABULARY:
        tokenizer = _collect_vocabulary(config, texts)
    else:
        try:
            tokenizer = _train_subwords(config, texts)
        except Exception as error:  # `tokenizers` raises bare Exception
            raise DataError(_explain_failure(config, texts, key, error)) from None
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS])
    # Not special: those are plain text where they occur in a text.
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False, rstrip=True) for token in tokens])
    tokenizer.post_processor = processors.TemplateProcessing(single=f"$A {END}", special_tokens=[(END, END_ID)])
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, path: Path) -> None:
    """Writes the tokenizer's JSON atomically."""
    write_text(path, tokenizer.to_str(pretty=True))


def load_tokenizer(path: Path) -> Tokenizer:
    """Loads a tokenizer's JSON.

    Raises:
        DataError: The file is missing or not a tokenizer.
    """
    try:
        tokenizer = Tokenizer.from_str(path.read_text(encoding="utf-8"))
    except Exception as error:  # `tokenizers` raises bare Exception
        raise DataError(f"{path}: cannot be read as a tokenizer ({error})") from None
    # "</s>" in a text is text, not the end token. The JSON does not store this setting.
    tokenizer.encode_special_tokens = True
    return tokenizer


def empty_tokenizer(config: TokenizerConfig) -> Tokenizer:
    """Builds a tokenizer with normalizer, pre-tokenizer and decoder, but without a vocabulary.

    For bpe and unigram, a space is prepended to the text and each word keeps its preceding space as "▁", so that a word
    is the same piece at the start of a text and inside it. Decoding removes exactly this one space, so the text's own
    spaces survive. Digits and punctuation marks are words of their own if the config splits them.
    """
    tokenizer = Tokenizer({"bpe": models.BPE, "unigram": models.Unigram}.get(config.kind, models.WordLevel)())
    tokenizer.normalizer = build_normalizer(config)
    if config.kind == "characters":
        tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
        tokenizer.decoder = decoders.Fuse()
    elif config.kind == "symbols":
        tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    else:
        # Words start at each "▁".
        tokenizer.normalizer = normalizers.Sequence([tokenizer.normalizer, normalizers.Prepend(" ")])
        tokenizer.pre_tokenizer = _split_words(config)
        tokenizer.decoder = decoders.Sequence(
            [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
        )
    return tokenizer


def _split_words(config: TokenizerConfig) -> pre_tokenizers.PreTokenizer:
    steps: list[pre_tokenizers.PreTokenizer] = [pre_tokenizers.Metaspace(prepend_scheme="never")]
    if config.digits == "split":
        steps.append(pre_tokenizers.Digits(individual_digits=True))
    if config.punctuation == "split":
        steps.append(pre_tokenizers.Punctuation("isolated"))
    return steps[0] if len(steps) == 1 else pre_tokenizers.Sequence(steps)


def min_tokens(config: TokenizerConfig, normal: str) -> int:
    """Returns a lower bound of the tokens that any tokenizer of this config needs for a text, without the end token.

    It is exact for characters and symbols. Pieces of bpe and unigram never span words or exceed MAX_PIECE_LENGTH.

    Args:
        normal: The text as the normalizer of the config changes it.
    """
    if config.kind == "characters":
        return len(normal)
    if config.kind == "symbols":
        return len(normal.split())
    return max(sum(map(bool, normal.split(" "))), -(-len(normal) // MAX_PIECE_LENGTH))


def _collect_vocabulary(config: TokenizerConfig, texts: Texts) -> Tokenizer:
    """Builds a vocabulary of all characters, or all symbols between white space, that occur in the texts, sorted."""
    tokenizer = empty_tokenizer(config)
    split = list if config.kind == "characters" else str.split
    found = sorted({symbol for text in texts for symbol in split(tokenizer.normalizer.normalize_str(text))})
    vocabulary = {token: i for i, token in enumerate([*SPECIAL_TOKENS, *found])}
    tokenizer.model = models.WordLevel(vocabulary, unk_token=UNKNOWN)
    return tokenizer


def _train_subwords(config: TokenizerConfig, texts: Texts) -> Tokenizer:
    """Trains BPE or unigram; characters outside the vocabulary become bytes, so that any text can be encoded."""
    pieces_size = config.vocabulary - len(SPECIAL_TOKENS) - len(BYTE_TOKENS)
    tokenizer = empty_tokenizer(config)
    trainer: trainers.Trainer
    if config.kind == "bpe":
        trainer = trainers.BpeTrainer(
            vocab_size=pieces_size,
            limit_alphabet=max(1, pieces_size // 2),
            max_token_length=MAX_PIECE_LENGTH,
            show_progress=False,
        )
    else:
        # The characters of the reserved tokens must be pieces too, see _unigram_with_bytes.
        trainer = trainers.UnigramTrainer(
            vocab_size=pieces_size,
            initial_alphabet=sorted(RESERVED_ALPHABET),
            max_piece_length=MAX_PIECE_LENGTH,
            show_progress=False,
            unk_token=UNKNOWN,
        )
    words = tokenizer.pre_tokenizer
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([words, pre_tokenizers.FixedLength(MAX_WORD_LENGTH)])
    tokenizer.train_from_iterator(_batches(texts), trainer)
    tokenizer.pre_tokenizer = words
    trained = json.loads(tokenizer.to_str())["model"]
    tokenizer.model = _bpe_with_bytes(trained) if config.kind == "bpe" else _unigram_with_bytes(trained)
    return tokenizer


def _batches(texts: Texts) -> Iterator[list[str]]:
    """Yields the texts in lists, which `tokenizers` reads faster than single ones."""
    remaining = iter(texts)
    while batch := [*islice(remaining, TEXTS_AT_ONCE)]:
        yield batch


def _explain_failure(config: TokenizerConfig, texts: Texts, key: str, error: Exception) -> str:
    if config.kind == "unigram":
        normalize = empty_tokenizer(config).normalizer.normalize_str
        alphabet = set().union(*map(normalize, texts)) - {" "}
        minimum = len(SPECIAL_TOKENS) + len(BYTE_TOKENS) + len(alphabet | RESERVED_ALPHABET | {"▁"})
        if config.vocabulary < minimum:
            return (
                f"{key}.vocabulary ({config.vocabulary}) is too small for unigram: each of the {len(alphabet):,} "
                f"characters of the training data is a piece; set it to at least {minimum}"
            )
    return f"{key}: no {config.kind} tokenizer can be trained on the training data ({error})"


def _bpe_with_bytes(trained: dict[str, Any]) -> models.BPE:
    pieces = sorted(trained["vocab"], key=trained["vocab"].__getitem__)
    vocabulary = {token: i for i, token in enumerate([*SPECIAL_TOKENS, *BYTE_TOKENS, *pieces])}
    merges = [(left, right) for left, right in trained["merges"]]
    return models.BPE(vocabulary, merges, unk_token=UNKNOWN, byte_fallback=True)


def _unigram_with_bytes(trained: dict[str, Any]) -> models.Unigram:
    pieces = [(piece, score) for piece, score in trained["vocab"] if piece != UNKNOWN]
    # Less likely than any split into pieces, so that "</s>" or "<0x41>" in a text is split into pieces instead.
    reserved = [(token, -1e6) for token in [*SPECIAL_TOKENS, *BYTE_TOKENS]]
    return models.Unigram([*reserved, *pieces], UNKNOWN_ID, byte_fallback=True)
