"""Tokenizers, trained from the training data with Hugging Face `tokenizers` and saved as its JSON."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from dragoman_training.data.normalization import build_normalizer
from dragoman_training.errors import DataError
from dragoman_training.files import write_text
from dragoman_training.recipe import TokenizerConfig

PAD, UNKNOWN, BEGIN, END = "<pad>", "<unk>", "<s>", "</s>"
SPECIAL_TOKENS = [PAD, UNKNOWN, BEGIN, END]
PAD_ID, UNKNOWN_ID, BEGIN_ID, END_ID = range(4)
NEVER_GENERATED = (PAD_ID, UNKNOWN_ID, BEGIN_ID)  # by a model that is trained
BYTE_TOKENS = [f"<0x{byte:02X}>" for byte in range(256)]
RESERVED_ALPHABET = set("".join(SPECIAL_TOKENS + BYTE_TOKENS))
CLOSED = ("characters", "symbols")  # kinds whose tokens are known before anything is learned
LONGEST_PIECE = 16  # characters of a piece of bpe or unigram
# NOTE: of a word, while pieces are learned. `tokenizers` learns bpe in the square of the longest word's length, and the
# trainer of unigram overflows its stack on words of 100,000 characters.
LONGEST_WORD = 256


def train_tokenizer(config: TokenizerConfig, texts: Sequence[str], key: str = "tokenizers.source") -> Tokenizer:
    """Builds the tokenizer a recipe asks for.

    Every tokenizer starts with the special tokens (ids 0 to 3) and ends an encoded text with the end token.

    Args:
        config: kind, vocabulary size, normalisation.
        texts: the training side, a text an item.
        key: the recipe's, for messages.

    Raises:
        DataError: no such tokenizer can be learned from these texts.
    """
    if config.kind in CLOSED:
        tokenizer = _closed_vocabulary(config, texts)
    else:
        try:
            tokenizer = _subwords(config, texts)
        except Exception as error:  # `tokenizers` raises plain Exception
            raise DataError(_unlearnable(config, texts, key, error)) from None
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS])
    tokenizer.post_processor = processors.TemplateProcessing(single=f"$A {END}", special_tokens=[(END, END_ID)])
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, path: Path) -> None:
    """Writes the tokenizer's JSON, whole or not at all."""
    write_text(path, tokenizer.to_str(pretty=True))


def load_tokenizer(path: Path) -> Tokenizer:
    """Reads a tokenizer's JSON.

    Raises:
        DataError: the file is missing or not a tokenizer.
    """
    try:
        tokenizer = Tokenizer.from_str(path.read_text(encoding="utf-8"))
    except Exception as error:  # `tokenizers` raises plain Exception
        raise DataError(f"{path}: cannot be read as a tokenizer ({error})") from None
    # A text that happens to spell "</s>" is that text, not the end of a sentence. The JSON does not keep this switch.
    tokenizer.encode_special_tokens = True
    return tokenizer


def empty_tokenizer(config: TokenizerConfig) -> Tokenizer:
    """A tokenizer that normalises, cuts and joins text as the recipe says, and has no vocabulary yet.

    For bpe and unigram, a space is put before every text and each word's piece begins with its space ("▁"), so a word
    is the same piece at the start of a text and inside it; decoding takes exactly that one space away, so a text's own
    spaces survive.
    """
    tokenizer = Tokenizer({"bpe": models.BPE, "unigram": models.Unigram}.get(config.kind, models.WordLevel)())
    tokenizer.normalizer = build_normalizer(config)
    if config.kind == "characters":
        tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
        tokenizer.decoder = decoders.Fuse()
    elif config.kind == "symbols":
        tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    else:
        # The pieces are words with their space, cut before each "▁".
        tokenizer.normalizer = normalizers.Sequence([tokenizer.normalizer, normalizers.Prepend(" ")])
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
        tokenizer.decoder = decoders.Sequence(
            [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
        )
    return tokenizer


def min_tokens(reader: Tokenizer, config: TokenizerConfig, text: str) -> int:
    """How many tokens any tokenizer of this recipe needs for a text at least, the end token not counted.

    Exact for characters and symbols, whatever their vocabularies; none of bpe and unigram has pieces that span words
    or are longer than LONGEST_PIECE.

    Args:
        reader: `untrained` of the config.
    """
    normal = reader.normalizer.normalize_str(text)
    if config.kind == "characters":
        return len(normal)
    if config.kind == "symbols":
        return len(normal.split())
    return max(sum(map(bool, normal.split(" "))), -(-len(normal) // LONGEST_PIECE))


def _closed_vocabulary(config: TokenizerConfig, texts: Iterable[str]) -> Tokenizer:
    """Characters, or symbols between white space: every one that occurs in the training data, in sorted order."""
    tokenizer = empty_tokenizer(config)
    split = list if config.kind == "characters" else str.split
    found = sorted({symbol for text in texts for symbol in split(tokenizer.normalizer.normalize_str(text))})
    vocabulary = {token: i for i, token in enumerate([*SPECIAL_TOKENS, *found])}
    tokenizer.model = models.WordLevel(vocabulary, unk_token=UNKNOWN)
    return tokenizer


def _subwords(config: TokenizerConfig, texts: Iterable[str]) -> Tokenizer:
    """BPE or unigram pieces; a character that is no piece is spelled in bytes, so that every text can be encoded."""
    room = config.vocabulary - len(SPECIAL_TOKENS) - len(BYTE_TOKENS)
    tokenizer = empty_tokenizer(config)
    trainer: trainers.Trainer
    if config.kind == "bpe":
        trainer = trainers.BpeTrainer(
            vocab_size=room,
            limit_alphabet=max(1, room // 2),
            max_token_length=LONGEST_PIECE,
            show_progress=False,
        )
    else:
        # What the reserved tokens are spelled with must be pieces too, see below.
        trainer = trainers.UnigramTrainer(
            vocab_size=room,
            initial_alphabet=sorted(RESERVED_ALPHABET),
            max_piece_length=LONGEST_PIECE,
            show_progress=False,
            unk_token=UNKNOWN,
        )
    words = tokenizer.pre_tokenizer
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([words, pre_tokenizers.FixedLength(LONGEST_WORD)])
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.pre_tokenizer = words
    learned = json.loads(tokenizer.to_str())["model"]
    tokenizer.model = _bpe_with_bytes(learned) if config.kind == "bpe" else _unigram_with_bytes(learned)
    return tokenizer


def _unlearnable(config: TokenizerConfig, texts: Sequence[str], key: str, error: Exception) -> str:
    if config.kind == "unigram":
        normalize = empty_tokenizer(config).normalizer.normalize_str
        alphabet = set().union(*map(normalize, texts)) - {" "}
        least = len(SPECIAL_TOKENS) + len(BYTE_TOKENS) + len(alphabet | RESERVED_ALPHABET | {"▁"})
        if config.vocabulary < least:
            return (
                f"{key}.vocabulary ({config.vocabulary}) is too small for unigram: each of the {len(alphabet):,} "
                f"characters of the training data is a piece, so it takes at least {least}"
            )
    return f"{key}: no {config.kind} tokenizer can be learned from the training data ({error})"


def _bpe_with_bytes(learned: dict[str, Any]) -> models.BPE:
    pieces = sorted(learned["vocab"], key=learned["vocab"].__getitem__)
    vocabulary = {token: i for i, token in enumerate([*SPECIAL_TOKENS, *BYTE_TOKENS, *pieces])}
    merges = [(left, right) for left, right in learned["merges"]]
    return models.BPE(vocabulary, merges, unk_token=UNKNOWN, byte_fallback=True)


def _unigram_with_bytes(learned: dict[str, Any]) -> models.Unigram:
    pieces = [(piece, score) for piece, score in learned["vocab"] if piece != UNKNOWN]
    # Less likely than any sum of pieces: a text that happens to spell "</s>" or "<0x41>" is cut into those instead.
    reserved = [(token, -1e6) for token in [*SPECIAL_TOKENS, *BYTE_TOKENS]]
    return models.Unigram([*reserved, *pieces], UNKNOWN_ID, byte_fallback=True)
