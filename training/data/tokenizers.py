"""Tokenizers, trained from the training data with Hugging Face `tokenizers` and saved as its JSON."""

from collections.abc import Iterable

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from training.recipe import TokenizerConfig

PAD, UNKNOWN, BEGIN, END = "<pad>", "<unk>", "<s>", "</s>"
SPECIAL_TOKENS = [PAD, UNKNOWN, BEGIN, END]
PAD_ID, UNKNOWN_ID, BEGIN_ID, END_ID = range(4)


def train_tokenizer(config: TokenizerConfig, texts: Iterable[str]) -> Tokenizer:
    """Builds the tokenizer a recipe asks for.

    Every tokenizer starts with the special tokens (ids 0 to 3) and ends an encoded text with the end token.

    Args:
        config: kind, vocabulary size, normalisation.
        texts: the training side, a text an item.
    """
    if config.kind in ("characters", "symbols"):
        tokenizer = _closed_vocabulary(config, texts)
    else:
        tokenizer = _subwords(config, texts)
    tokenizer.post_processor = processors.TemplateProcessing(single=f"$A {END}", special_tokens=[(END, END_ID)])
    return tokenizer


def _normalizer(config: TokenizerConfig) -> normalizers.Normalizer:
    steps: list[normalizers.Normalizer] = [normalizers.NFC()]
    if config.lowercase:
        steps.append(normalizers.Lowercase())
    return normalizers.Sequence(steps)


def _closed_vocabulary(config: TokenizerConfig, texts: Iterable[str]) -> Tokenizer:
    """Characters, or symbols between white space: every one that occurs in the training data, in sorted order."""
    normalizer = _normalizer(config)
    split = list if config.kind == "characters" else str.split
    found = sorted({symbol for text in texts for symbol in split(normalizer.normalize_str(text))})
    vocabulary = {token: i for i, token in enumerate([*SPECIAL_TOKENS, *found])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    tokenizer.normalizer = normalizer
    if config.kind == "characters":
        tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
        tokenizer.decoder = decoders.Fuse()
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS])
    return tokenizer


def _subwords(config: TokenizerConfig, texts: Iterable[str]) -> Tokenizer:
    raise NotImplementedError(config.kind)
