"""Text normalization before tokenization, and the canonical form in which texts are compared.

docs/text.md lists the characters in the tables below.
"""

from tokenizers import Regex, Tokenizer, normalizers

from dragoman_training.recipe import TokenizerConfig

# Unicode white space, and characters that look like it: U+2800, and the fillers U+3164 and U+FFA0.
_BLANK = (
    r"\x{9}-\x{D}\x{20}\x{85}\x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{2800}\x{3000}"
    r"\x{3164}\x{FFA0}"
)
# Invisible, and never the only difference between two words: the soft hyphen, zero-width spaces, word joiners,
# direction marks, invisible operators, the byte order mark.
_INVISIBLE = r"\x{AD}\x{61C}\x{200B}\x{200E}\x{200F}\x{202A}-\x{202E}\x{2060}-\x{206F}\x{FEFF}"
# Between these characters, U+200C and U+200D have no effect. Next to all others they may have one: they shape the
# letters of Arabic and of Indic scripts, and join emoji.
_UNSHAPED = (
    _BLANK + r"\p{Nd}\p{P}\p{Latin}\p{Greek}\p{Cyrillic}\p{Armenian}\p{Georgian}\p{Han}\p{Hiragana}\p{Katakana}"
    r"\p{Hangul}\p{Thai}\p{Lao}"
)
# A run of joiners between two of those characters or at an end of the text; and U+200C at the end of a word, which is
# always a typing mistake.
# NOTE: The groups are atomic and start where no joiner precedes, so that long runs take linear time.
_IDLE_JOINERS = (
    rf"(?<![^{_UNSHAPED}])(?>[\x{{200C}}\x{{200D}}]+)(?![^{_UNSHAPED}])"
    rf"|(?<!\x{{200C}})(?>\x{{200C}}+)(?![^{_BLANK}])"
)


def build_normalizer(config: TokenizerConfig) -> normalizers.Normalizer:
    """Builds the normalizer: NFC, invisible differences removed and lower case as configured. It is idempotent."""
    nfc, drop = normalizers.NFC(), config.invisible == "drop"
    steps: list[normalizers.Normalizer] = [nfc]
    if drop:
        steps = [_remove(f"[{_INVISIBLE}]"), nfc, _remove(_IDLE_JOINERS), nfc]
    if config.lowercase:
        steps += [normalizers.Lowercase(), nfc]
    if drop:
        steps += [normalizers.Replace(Regex(f"[{_BLANK}]+"), " "), normalizers.Strip()]
    return normalizers.Sequence(steps)


def canonical(tokenizer: Tokenizer, text: str) -> str:
    """Returns the text as the tokenizer reads it: what decoding returns if all its tokens are in the vocabulary.

    Texts that are the same to the model become equal; answers and references are compared in this form.
    """
    return canonical_of_normal(tokenizer, normalized(tokenizer, text))


def normalized(tokenizer: Tokenizer, text: str) -> str:
    """Returns a text as the tokenizer's normalizer changes it."""
    return text if tokenizer.normalizer is None else str(tokenizer.normalizer.normalize_str(text))


def canonical_of_normal(tokenizer: Tokenizer, text: str) -> str:
    """Returns the canonical form of a text that is `normalized`."""
    if tokenizer.decoder is None:
        return " ".join(piece for piece, _ in tokenizer.pre_tokenizer.pre_tokenize_str(text))
    if _writes_bytes(tokenizer):
        return text
    decoded: str = tokenizer.decoder.decode([text])
    return decoded


def _writes_bytes(tokenizer: Tokenizer) -> bool:
    """Returns whether letters of tokens are bytes, as in imported byte-level tokenizers; a text is not made of such."""
    return bool(tokenizer.decoder.decode(["ö"]) != "ö")


def _remove(pattern: str) -> normalizers.Normalizer:
    return normalizers.Replace(Regex(pattern), "")
