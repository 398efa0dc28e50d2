"""What a text is reduced to before it is cut into tokens, and when two texts are one and the same.

What the tables below hold is listed for readers in docs/text.md.
"""

from tokenizers import Regex, Tokenizer, normalizers

from dragoman_training.recipe import TokenizerConfig

# White space as Unicode has it, and what only looks like it: U+2800, and the fillers U+3164 and U+FFA0.
_BLANK = (
    r"\x{9}-\x{D}\x{20}\x{85}\x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{2800}\x{3000}"
    r"\x{3164}\x{FFA0}"
)
# Never seen, and never what tells one word from another: the soft hyphen, zero-width spaces and joins of words, marks
# of the direction of writing, invisible operators, the byte order mark.
_INVISIBLE = r"\x{AD}\x{61C}\x{200B}\x{200E}\x{200F}\x{202A}-\x{202E}\x{2060}-\x{206F}\x{FEFF}"
# Beside these U+200C and U+200D change nothing. Beside all others they may: they shape the letters of Arabic and of the
# scripts of India, and make one picture of several emoji.
_UNSHAPED = (
    _BLANK + r"\p{Nd}\p{P}\p{Latin}\p{Greek}\p{Cyrillic}\p{Armenian}\p{Georgian}\p{Han}\p{Hiragana}\p{Katakana}"
    r"\p{Hangul}\p{Thai}\p{Lao}"
)
# A run of joiners between two of those, or at an end; and U+200C that ends a word, which is only ever a slip of typing.
# NOTE: atomic groups that start where no joiner stands before, so that long runs take no longer than they are.
_IDLE_JOINERS = (
    rf"(?<![^{_UNSHAPED}])(?>[\x{{200C}}\x{{200D}}]+)(?![^{_UNSHAPED}])"
    rf"|(?<!\x{{200C}})(?>\x{{200C}}+)(?![^{_BLANK}])"
)


def build_normalizer(config: TokenizerConfig) -> normalizers.Normalizer:
    """Unicode's NFC; without differences nobody sees, unless the recipe keeps them; in lower case if it asks for that.

    What it has normalised once it leaves as it is.
    """
    nfc, drop = normalizers.NFC(), config.invisible == "drop"
    steps: list[normalizers.Normalizer] = [nfc]
    if drop:
        steps = [_without(f"[{_INVISIBLE}]"), nfc, _without(_IDLE_JOINERS), nfc]
    if config.lowercase:
        steps += [normalizers.Lowercase(), nfc]
    if drop:
        steps += [normalizers.Replace(Regex(f"[{_BLANK}]+"), " "), normalizers.Strip()]
    return normalizers.Sequence(steps)


def canonical(tokenizer: Tokenizer, text: str) -> str:
    """The text as the tokenizer reads it: what decoding gives back, were each piece of it in the vocabulary.

    Texts that are the same to the model become equal; answers and references are compared in this form.
    """
    if tokenizer.normalizer is not None:
        text = tokenizer.normalizer.normalize_str(text)
    if tokenizer.decoder is not None:
        joined: str = tokenizer.decoder.decode([text])
        return joined
    return " ".join(piece for piece, _ in tokenizer.pre_tokenizer.pre_tokenize_str(text))


def _without(pattern: str) -> normalizers.Normalizer:
    return normalizers.Replace(Regex(pattern), "")
