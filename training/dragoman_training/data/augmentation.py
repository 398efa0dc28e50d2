"""Changes that training pairs get in each epoch anew, so that a model learns what its corpus lacks.

Web text has emoji, words in other scripts, codes and numbers that no corpus of clean sentences contains. Each change
is made on both sides alike, so that the rest of the translation stays what it was.
"""

import re
from collections.abc import Sequence

import numpy as np

from dragoman_training.data.foreign_text import REPEATED, foreign_text, made_up_name, random_digits, random_number
from dragoman_training.recipe import AugmentationConfig, NumberFormat

_NUMBER = re.compile(r"\d+(?:[.,:]\d+)*")
_NAME = re.compile(r"\b[A-ZÀ-ÖØ-Þ][^\W\d_]{2,}\b")  # lower-case words may be others: was, in, an
_END = re.compile(r"[.!?…]+$")

Texts = tuple[str, str]


class Augmentation:
    """Changes pairs at random.

    Args:
        config: Share of the pairs that get each change.
    """

    def __init__(self, config: AugmentationConfig) -> None:
        self.config = config

    def changes(self, pairs: Sequence[Texts], rng: np.random.Generator) -> dict[int, Texts]:
        """Draws the changes of an epoch.

        Args:
            pairs: Source and target of each training pair.

        Returns:
            The changed pairs by their index.
        """
        config = self.config
        draw = rng.random((len(pairs), 6))
        shares = (
            config.concatenated,
            config.numbers,
            config.names,
            config.inserts,
            config.unpunctuated,
            config.uppercase,
        )
        drawn = draw < np.array(shares)  # [pairs, changes]
        changed: dict[int, Texts] = {}
        for i in np.flatnonzero(drawn.any(1)).tolist():
            concatenated, numbers, names, inserts, unpunctuated, uppercase = drawn[i].tolist()
            texts = before = pairs[i]
            if concatenated:
                texts = _concatenate(texts, pairs[int(rng.integers(len(pairs)))])
            if numbers:
                texts = _change_numbers(texts, config.number_format, rng)
            if names:
                texts = _change_name(texts, rng)
            if inserts:
                texts = _insert(texts, rng)
            if unpunctuated:
                texts = _remove_punctuation(texts)
            if uppercase:
                texts = texts[0].upper(), texts[1].upper()
            if texts != before:
                changed[i] = texts
        return changed


def _concatenate(texts: Texts, others: Texts) -> Texts:
    return f"{texts[0]} {others[0]}", f"{texts[1]} {others[1]}"


def _change_numbers(texts: Texts, formats: NumberFormat, rng: np.random.Generator) -> Texts:
    """Gives the numbers that both sides share other digits.

    A number alone in its sentence, with two digits or more (one is often a day or an hour), gets another length and
    form. Several may be parts of one, such as an account number in blocks, and keep their form.
    """
    new: dict[str, Texts] = {}
    alone = all(len(_NUMBER.findall(text)) == 1 for text in texts)
    for number in _shared(_NUMBER, texts):
        if alone and number.isdigit() and len(number) > 1:
            source, target = random_number(rng, formats.source, formats.target)
            new[number] = source, target
        else:
            digits = iter(random_digits(rng, len(number), REPEATED))
            same = "".join(next(digits) if c.isdigit() else c for c in number)
            if same.startswith("0"):
                same = str(rng.integers(1, 10)) + same[1:]
            new[number] = same, same
    return (
        _NUMBER.sub(lambda match: new[match[0]][0] if match[0] in new else match[0], texts[0]),
        _NUMBER.sub(lambda match: new[match[0]][1] if match[0] in new else match[0], texts[1]),
    )


def _change_name(texts: Texts, rng: np.random.Generator) -> Texts:
    """Replaces a word that both sides share, such as a name, by one that no vocabulary has."""
    shared = _shared(_NAME, texts)
    if not shared:
        return texts
    new = foreign_text(rng) if rng.random() < 0.5 else made_up_name(rng)
    name = _whole_word(shared[int(rng.integers(len(shared)))])
    return name.sub(lambda _: new, texts[0]), name.sub(lambda _: new, texts[1])


def _insert(texts: Texts, rng: np.random.Generator) -> Texts:
    """Inserts one foreign text on both sides.

    It stands at the start, at the end, before the final punctuation, after a word that both sides share, or after the
    same share of the words.
    """
    source, target = texts
    foreign = foreign_text(rng)
    place = rng.random()
    if place < 0.2:
        return f"{foreign} {source}", f"{foreign} {target}"
    if place < 0.45:
        return f"{source} {foreign}", f"{target} {foreign}"
    if place < 0.6:
        return _insert_before_end(source, foreign), _insert_before_end(target, foreign)
    shared = _shared(_NAME, texts)
    if shared:
        name = _whole_word(shared[int(rng.integers(len(shared)))])
        return name.sub(rf"\g<0> {foreign}", source, count=1), name.sub(rf"\g<0> {foreign}", target, count=1)
    share = rng.random()
    return _insert_at(source, share, foreign), _insert_at(target, share, foreign)


def _shared(pattern: re.Pattern[str], texts: Texts) -> list[str]:
    """Returns the matches that both sides have, sorted."""
    return sorted(set(pattern.findall(texts[0])) & set(pattern.findall(texts[1])))


def _whole_word(word: str) -> re.Pattern[str]:
    return re.compile(rf"\b{re.escape(word)}\b")


def _insert_before_end(text: str, foreign: str) -> str:
    end = _END.search(text)
    return f"{text[: end.start()]} {foreign}{end[0]}" if end else f"{text} {foreign}"


def _insert_at(text: str, share: float, foreign: str) -> str:
    words = text.split(" ")
    words.insert(round(share * len(words)), foreign)
    return " ".join(words)


def _remove_punctuation(texts: Texts) -> Texts:
    ends = [_END.search(text) for text in texts]
    if not all(ends):
        return texts
    source, target = (text[: end.start()] if end else text for text, end in zip(texts, ends, strict=True))
    return (source, target) if source.strip() and target.strip() else texts
