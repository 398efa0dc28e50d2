"""Made German-English sentences with numbers in digits, which Tatoeba nearly lacks: prices, dates, account numbers."""

import re
from itertools import cycle, islice
from pathlib import Path

import numpy as np

from dragoman_training.data.foreign_text import random_digits

TEMPLATES = Path(__file__).parents[1] / "recipes" / "de-en.numbers.tsv"
_SLOT = re.compile(r"\{(\w+?)(2?)\}")
_MONTHS = (
    ("Januar", "January"),
    ("Februar", "February"),
    ("März", "March"),
    ("April", "April"),
    ("Mai", "May"),
    ("Juni", "June"),
    ("Juli", "July"),
    ("August", "August"),
    ("September", "September"),
    ("Oktober", "October"),
    ("November", "November"),
    ("Dezember", "December"),
)
_CURRENCIES = (("€", "€"), ("$", "$"), ("£", "£"))
_CURRENCY_NAMES = (("Euro", "euros"), ("Dollar", "dollars"), ("Franken", "francs"), ("Pfund", "pounds"))

Texts = tuple[str, str]


def number_sentences(count: int, seed: int, templates: Path = TEMPLATES) -> list[Texts]:
    """Makes sentences, each of a template and random numbers; German and English write the same ones in their way.

    Args:
        count: Number of sentences.
        seed: Seed of the draw.
        templates: File of German<TAB>English lines with slots such as {price} and {date}.

    Returns:
        The pairs (German, English).
    """
    rng = np.random.default_rng(seed)
    lines = [line.partition("\t") for line in templates.read_text(encoding="utf-8").splitlines()]
    return [_fill(german, english, rng) for german, _, english in islice(cycle(lines), count)]


def _fill(german: str, english: str, rng: np.random.Generator) -> Texts:
    values = {match[0]: _KINDS[match[1]](rng) for match in _SLOT.finditer(german)}
    return (
        _SLOT.sub(lambda match: values[match[0]][0], german),
        _SLOT.sub(lambda match: values[match[0]][1], english),
    )


def _amount(rng: np.random.Generator, decimals: int | None = None) -> Texts:
    """Draws a number with one or two decimals."""
    whole = int(rng.integers(10 ** int(rng.integers(1, 7))))
    fraction = int(rng.integers(1, 3)) if decimals is None else decimals
    text = f"{whole:,}.{int(rng.integers(10**fraction)):0{fraction}d}"
    if rng.random() < 0.15:
        text = text.replace(",", "")
    return text.translate(str.maketrans(",.", ".,")), text


def _price(rng: np.random.Generator) -> Texts:
    german, english = _amount(rng, 2) if rng.random() < 0.7 else _integer(rng)
    kind = rng.random()
    if kind < 0.5:
        sign = _CURRENCIES[int(rng.integers(len(_CURRENCIES)))]
        return f"{german} {sign[0]}", f"{sign[1]}{english}"
    if kind < 0.9:
        name = _CURRENCY_NAMES[int(rng.integers(len(_CURRENCY_NAMES)))]
        return f"{german} {name[0]}", f"{english} {name[1]}"
    return f"EUR {german}", f"EUR {english}"


def _date(rng: np.random.Generator) -> Texts:
    year, month, day = int(rng.integers(1900, 2051)), int(rng.integers(12)), int(rng.integers(1, 32))
    kind = rng.random()
    if kind < 0.45:
        text = f"{day}.{month + 1}.{year}" if rng.random() < 0.3 else f"{day:02d}.{month + 1:02d}.{year}"
        return text, text
    if kind < 0.55:
        text = f"{year}-{month + 1:02d}-{day:02d}"
        return text, text
    german, english = _MONTHS[month]
    if kind < 0.85:
        return f"{day}. {german} {year}", f"{english} {day}, {year}"
    return f"{day}. {german}", f"{english} {day}"


def _time(rng: np.random.Generator) -> Texts:
    text = f"{int(rng.integers(24))}:{int(rng.integers(60)):02d}"
    return f"{text} Uhr", text


def _account(rng: np.random.Generator) -> Texts:
    kind = rng.random()
    if kind < 0.4:
        country = ("DE", "AT", "CH", "FR", "NL")[int(rng.integers(5))]
        digits = random_digits(rng, 20)
        blocks = [country + digits[:2], *(digits[i : i + 4] for i in range(2, 20, 4))]
        text = (" " if rng.random() < 0.7 else "").join(blocks)
    elif kind < 0.6:
        size = int(rng.integers(2, 5))
        text = " ".join(random_digits(rng, size) for _ in range(int(rng.integers(2, 6))))
    else:
        text = random_digits(rng, int(rng.integers(5, 17)))
    return text, text


def _phone(rng: np.random.Generator) -> Texts:
    area = ("030", "040", "089", "+49 170", "+43 1", "0221", "(0711)")[int(rng.integers(7))]
    separator = (" ", "-", "/")[int(rng.integers(3))]
    text = f"{area}{separator}{random_digits(rng, int(rng.integers(5, 9)))}"
    return text, text


def _code(rng: np.random.Generator) -> Texts:
    letters = "".join(chr(int(c)) for c in rng.integers(ord("A"), ord("Z") + 1, size=int(rng.integers(1, 5))))
    separator = ("-", " ", "", "/")[int(rng.integers(4))]
    text = f"{letters}{separator}{random_digits(rng, int(rng.integers(2, 8)))}"
    return text, text


def _percent(rng: np.random.Generator) -> Texts:
    german, english = _amount(rng, 1) if rng.random() < 0.5 else _small(rng)
    return (f"{german} %", f"{english}%") if rng.random() < 0.5 else (f"{german} Prozent", f"{english} percent")


def _integer(rng: np.random.Generator) -> Texts:
    number = int(rng.integers(2, 10 ** int(rng.integers(1, 9)) + 2))
    if rng.random() < 0.3:
        return str(number), str(number)
    return f"{number:,}".replace(",", "."), f"{number:,}"


def _small(rng: np.random.Generator) -> Texts:
    text = str(int(rng.integers(2, 200)))
    return text, text


def _year(rng: np.random.Generator) -> Texts:
    text = str(int(rng.integers(1000, 2100)))
    return text, text


_KINDS = {
    "account": _account,
    "amount": _amount,
    "code": _code,
    "date": _date,
    "integer": _integer,
    "percent": _percent,
    "phone": _phone,
    "price": _price,
    "small": _small,
    "time": _time,
    "year": _year,
}
