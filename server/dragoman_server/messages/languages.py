"""The languages of a request's source."""

import re
from difflib import get_close_matches
from typing import NamedTuple

from dragoman.v1 import generation_pb2 as pb
from dragoman_server.bundle.manifest import Side, Text
from dragoman_server.bundle.segmenter import frame_ids
from dragoman_server.messages.api_error import invalid

FIELDS: dict[Side, str] = {"source": "source_language", "target": "target_language"}
# How texts themselves name the language to translate to, as OPUS-MT and MADLAD-400 models do.
NAMED = re.compile(r">>(.+?)<<|<2(\w+)>")
SHOWN = 5


def language_field(field: str, side: Side) -> str:
    """Returns the path of a language's field, below that of its input if there is one."""
    return f"{field}.{FIELDS[side]}" if field else FIELDS[side]


class SourceFrame(NamedTuple):
    """A source text and the ids around those of the text."""

    text: str
    before: list[int]
    after: list[int]


class Languages:
    """The languages that a model's requests name, and how sources state them.

    Args:
        rules: Text rules of an imported model; None for a model trained here, which has no languages.
    """

    def __init__(self, rules: Text | None) -> None:
        self._rules = rules = rules or Text()
        parts = {*rules.before, *rules.after}
        self._in_prefix = "{target_language}" in rules.prefix
        self._in_parts = "target_language" in parts
        by_source = frozenset(code for code, tokens in rules.languages.items() if tokens.source is not None)
        by_target = frozenset(code for code, tokens in rules.languages.items() if tokens.target is not None)
        self.codes: dict[Side, frozenset[str]] = {
            "source": by_source if "source_language" in parts else frozenset(),
            "target": by_target
            if rules.forces_language
            else by_source
            if self._in_prefix or self._in_parts
            else frozenset(),
        }
        # Sides whose language is in the source's ids or text; a forced first token is in the target alone.
        self._framing: list[Side] = ["source"] if self.codes["source"] else []
        self._framing += ["target"] if self._in_prefix or self._in_parts else []
        self._defaults: dict[Side, str] = {"source": rules.source_language, "target": rules.target_language}

    def forced_first(self, source: pb.Input, field: str) -> int | None:
        """Returns the token of the target language if every target starts with it.

        Args:
            field: Name of the source's field, for the error.

        Raises:
            ApiError: the target language is unknown or missing.
        """
        if not self._rules.forces_language:
            return None
        return self._rules.languages[self._choose("target", source, field)].target

    def frame(self, source: pb.Input, field: str) -> SourceFrame:
        """Returns a source text with the ids around it.

        A text that starts with the name of a target language, such as ">>deu<<", needs no other one.

        Raises:
            ApiError: a language is unknown or missing, or text and field name different ones.
        """
        rules, text = self._rules, source.text
        self._refuse_useless(source, field)
        chosen: dict[Side, str] = {}
        named = self._named(source, field) if self._in_parts or self._in_prefix else None
        if named is not None:
            chosen["target"] = named
            text = text if self._in_prefix else NAMED.sub("", text, count=1)
        for side in self._framing:
            if side not in chosen:
                chosen[side] = self._choose(side, source, field)
        if named is None:
            text = rules.prefix.replace("{target_language}", chosen.get("target", "")) + text
        before, after = (frame_ids(rules, parts, chosen) for parts in (rules.before, rules.after))
        return SourceFrame(text, before, after)

    def check_ids(self, source: pb.Input, field: str) -> None:
        """Refuses languages beside token ids, which contain them; a forced target language is no part of a source.

        Raises:
            ApiError: such a language is set.
        """
        self._refuse_useless(source, field)
        for side, name in FIELDS.items():
            if source.HasField(name) and not (side == "target" and self._rules.forces_language):
                raise invalid(
                    language_field(field, side), "can't be combined with token_ids, which contain the language"
                )

    def _named(self, source: pb.Input, field: str) -> str | None:
        """Returns the target language that a text names at its start."""
        match = NAMED.match(source.text)
        if match is None:
            return None
        code: str = match[1] or match[2]
        if code not in self.codes["target"]:
            return None
        if source.HasField("target_language") and source.target_language != code:
            problem = f"is {source.target_language!r}, but the text starts with {source.text[: match.end()]!r}"
            raise invalid(language_field(field, "target"), problem)
        return code

    def _choose(self, side: Side, source: pb.Input, field: str) -> str:
        """Returns the language of a side: the request's, or else the model's default."""
        name, codes = FIELDS[side], self.codes[side]
        given = source.HasField(name)
        code: str = getattr(source, name) if given else self._defaults[side]
        if code in codes:
            return code
        path = language_field(field, side)
        if not given:
            raise invalid(path, f"is missing: the model needs a {side} language, {_examples(codes)}")
        near = get_close_matches(code, sorted(codes), SHOWN, 0.5) or _same_start(code, codes)
        hint = f"did you mean {' or '.join(near)}?" if near else f"it has {_examples(codes)}"
        raise invalid(path, f"is {code!r}, which is not a {side} language of the model; {hint}")

    def _refuse_useless(self, source: pb.Input, field: str) -> None:
        for side, name in FIELDS.items():
            if not self.codes[side] and source.HasField(name):
                raise invalid(language_field(field, side), f"is set, but the model has no choice of {side} languages")


def refuse_languages(part: pb.Input, field: str, *, is_source: bool = False) -> None:
    """Raises ApiError if an input names a language: one that is no source, or the source of a model without any."""
    for side, name in FIELDS.items():
        if part.HasField(name):
            reason = f"the model has no choice of {side} languages" if is_source else "only a source has languages"
            raise invalid(language_field(field, side), f"is set, but {reason}")


def _same_start(code: str, codes: frozenset[str]) -> list[str]:
    return sorted(other for other in codes if code and other.lower().startswith(code.lower()[:2]))[:SHOWN]


def _examples(codes: frozenset[str]) -> str:
    ordered = sorted(codes)
    if len(ordered) <= SHOWN:
        return f"one of {', '.join(ordered)}"
    return f"such as {', '.join(ordered[:SHOWN])} (GetModel lists all {len(ordered)})"
