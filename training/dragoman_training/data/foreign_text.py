"""Texts that no corpus contains: emoji, words of many scripts, made-up names, codes and numbers."""

import numpy as np

# The first and last letters of alphabets, and the usual number of characters in a word.
_SCRIPTS = (
    ("а", "я", 7),  # Cyrillic
    ("А", "Я", 5),
    ("α", "ω", 7),  # Greek
    ("ա", "ֆ", 6),  # Armenian
    ("א", "ת", 5),  # Hebrew
    ("ا", "ي", 5),  # Arabic
    ("अ", "ह", 4),  # Devanagari
    ("অ", "হ", 4),  # Bengali
    ("அ", "ஹ", 4),  # Tamil
    ("ก", "ฮ", 4),  # Thai
    ("ა", "ჰ", 6),  # Georgian
    ("ሀ", "ፐ", 4),  # Ethiopic
    ("ぁ", "ん", 4),  # Hiragana
    ("ァ", "ン", 4),  # Katakana
    ("一", "龥", 3),  # Han
    ("가", "힣", 3),  # Hangul
    ("À", "ž", 5),  # Latin with diacritics
)
# Miscellaneous symbols and dingbats, then the pictographs of the supplementary planes.
_SYMBOLS = ((0x2190, 0x21FF), (0x2600, 0x27BF), (0x1F300, 0x1F5FF), (0x1F600, 0x1F64F), (0x1F680, 0x1F6FF))
_MORE_SYMBOLS = ((0x1F900, 0x1F9FF), (0x1FA70, 0x1FAFF), (0x2030, 0x205E), (0x20A0, 0x20BF), (0x2200, 0x22FF))
_REGIONAL_A = 0x1F1E6  # two regional indicators make a flag
_PEOPLE, _HANDS = "👦👧👨👩👴👵🧑", "👋👌👍👎👏👐🙏💪🤝👆"
_SKIN_TONES = "🏻🏼🏽🏾🏿"
_JOINER = "\u200d"  # of several pictographs into one
_VOWELS, _CONSONANTS = "aeiouy", "bcdfghjklmnprstvwxz"
_CAPITALS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_DIGITS = "0123456789"
REPEATED = 0.4  # share of the drawn numbers with runs of a digit


def foreign_text(rng: np.random.Generator) -> str:
    """Returns emoji or other symbols, a word of another script, a code, or an address."""
    kind = rng.random()
    if kind < 0.4:
        return "".join(_symbol(rng) for _ in range(_count(rng, 3)))
    if kind < 0.75:
        return _word(rng)
    return _code(rng) if kind < 0.9 else _address(rng)


def made_up_name(rng: np.random.Generator) -> str:
    """Returns a capitalised word of Latin letters."""
    syllables = "".join(_pick(rng, _CONSONANTS) + _pick(rng, _VOWELS) for _ in range(1 + _count(rng, 3)))
    return (syllables + ("" if rng.random() < 0.5 else _pick(rng, _CONSONANTS))).capitalize()


def random_number(rng: np.random.Generator, *formats: str) -> tuple[str, ...]:
    """Draws a number and writes it in several formats.

    Whole numbers have one to nine digits, some grouped in thousands; amounts have one or two decimals; account numbers
    and the like have up to twenty digits, some in blocks, and are the same in every format.

    Args:
        formats: The number 1234.5 as the format writes it, e.g. "1.234,5": thousands separator and decimal mark.
    """
    kind = rng.random()
    if kind < 0.2:
        digits = random_digits(rng, int(rng.integers(8, 21)), REPEATED)
        if rng.random() < 0.5:
            size = int(rng.integers(2, 5))
            digits = " ".join(digits[i : i + size] for i in range(0, len(digits), size))
        return tuple(digits for _ in formats)
    whole = int(random_digits(rng, int(rng.integers(1, 9)), REPEATED))
    decimals = random_digits(rng, int(rng.integers(1, 3)), REPEATED) if kind < 0.6 else ""
    grouped = rng.random() < 0.7
    return tuple(_write(whole, decimals, thousands=f[1], decimal_mark=f[5], grouped=grouped) for f in formats)


def _write(whole: int, decimals: str, *, thousands: str, decimal_mark: str, grouped: bool) -> str:
    digits = f"{whole:,}".replace(",", thousands) if grouped else str(whole)
    return f"{digits}{decimal_mark}{decimals}" if decimals else digits


def _symbol(rng: np.random.Generator) -> str:
    """Returns a symbol, some with the selector of its coloured form, a flag, a hand, or one or several people."""
    kind = rng.random()
    if kind < 0.05:
        return "".join(chr(_REGIONAL_A + int(i)) for i in rng.integers(26, size=2))
    if kind < 0.1:
        return _pick(rng, _HANDS) + _pick(rng, _SKIN_TONES)
    if kind < 0.15:
        return _JOINER.join(_pick(rng, _PEOPLE) for _ in range(int(rng.integers(1, 4))))
    ranges = _SYMBOLS if rng.random() < 0.8 else _MORE_SYMBOLS
    first, last = ranges[int(rng.integers(len(ranges)))]
    return chr(int(rng.integers(first, last + 1))) + ("\ufe0f" if rng.random() < 0.15 else "")


def _word(rng: np.random.Generator) -> str:
    first, last, length = _SCRIPTS[int(rng.integers(len(_SCRIPTS)))]
    letters = rng.integers(ord(first), ord(last) + 1, size=1 + _count(rng, 2 * length - 1))
    return "".join(map(chr, letters.tolist()))


def _code(rng: np.random.Generator) -> str:
    """Returns a code such as DE44 5001, AB-1234 or X7K29."""
    letters = "".join(_pick(rng, _CAPITALS) for _ in range(_count(rng, 3)))
    separator = ("", "-", " ", "/")[int(rng.integers(4))]
    return letters + separator + random_digits(rng, int(rng.integers(1, 9)), REPEATED)


def _address(rng: np.random.Generator) -> str:
    name, host = made_up_name(rng).lower(), made_up_name(rng).lower()
    domain = (".de", ".com", ".org", ".net")[int(rng.integers(4))]
    patterns = (
        f"{name}@{host}{domain}",
        f"www.{host}{domain}",
        f"https://{host}{domain}/{name}",
        f"@{name}",
        f"#{name}",
    )
    return patterns[int(rng.integers(len(patterns)))]


def random_digits(rng: np.random.Generator, count: int, repeated: float = 0.0) -> str:
    """Returns `count` random digits.

    Args:
        repeated: Probability that the digits contain runs; then every other digit repeats the one before, so that
            1000033 and the like, which models miscount, are as usual as 1234567.
    """
    digits = rng.integers(10, size=count).tolist()
    if repeated and rng.random() < repeated:
        for i in np.flatnonzero(rng.random(max(0, count - 1)) < 0.5).tolist():
            digits[i + 1] = digits[i]
    return "".join(_DIGITS[i] for i in digits)


def _pick(rng: np.random.Generator, letters: str) -> str:
    return letters[int(rng.integers(len(letters)))]


def _count(rng: np.random.Generator, most: int) -> int:
    """Draws a number from 1 to `most`; small ones are more likely."""
    return 1 + int(rng.integers(0, most) * rng.random())
