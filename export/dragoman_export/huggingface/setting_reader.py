"""Reads single values of generation settings."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, overload

REQUIRED = ("decoder_start_token_id", "eos_token_id", "bos_token_id")  # defaults come from config.json


@dataclass(frozen=True)
class SettingReader:
    """Reads and checks values. Methods raise ValueError with a message that names the key.

    Attributes:
        values: Settings by key, without those that are null.
        config: The model's configuration.
        vocabulary: Number of target tokens.
    """

    values: Mapping[str, Any]
    config: Any
    vocabulary: int

    def token(self, key: str) -> int | None:
        """Reads a token id, possibly in a list; None if there is none."""
        value = self.values.get(key)
        if value is None and key in REQUIRED:
            value = getattr(self.config, key, None)
        if isinstance(value, list) and len(value) == 1:
            value = value[0]
        if value is None:
            return None
        if not isinstance(value, int) or isinstance(value, bool):
            raise ValueError(f"{key} is {value!r}; expected one token id")
        return self._within(key, value)

    def tokens(self, key: str) -> tuple[int, ...]:
        """Reads a list of token ids."""
        value = self.values.get(key, [])
        if not _is_ids(value):
            raise ValueError(f"{key} is {value!r}; expected a list of token ids")
        return tuple(self._within(key, token) for token in value)

    def words(self, key: str) -> tuple[tuple[int, ...], ...]:
        """Reads a list of token sequences."""
        value = self.values.get(key, [])
        if not isinstance(value, list) or not all(word and _is_ids(word) for word in value):
            raise ValueError(f"{key} is {value!r}; expected a list of lists of token ids")
        return tuple(tuple(self._within(key, token) for token in word) for word in value)

    def truth(self, key: str) -> bool:
        """Reads true or false; false by default."""
        value = self.values.get(key, False)
        if not isinstance(value, bool):
            raise ValueError(f"{key} is {value!r}; expected true or false")
        return value

    @overload
    def whole(self, key: str, default: int, least: int | None = 0) -> int: ...

    @overload
    def whole(self, key: str, default: None, least: int | None = 0) -> int | None: ...

    def whole(self, key: str, default: int | None, least: int | None = 0) -> int | None:
        """Reads a whole number of at least `least`."""
        value = self._number(key)
        if value is None:
            return default
        if value != value // 1 or (least is not None and value < least):
            bounds = "" if least is None else f" from {least}"
            raise ValueError(f"{key} is {value!r}; expected a whole number{bounds}")
        return int(value)

    @overload
    def number(self, key: str, default: float, least: float, most: float) -> float: ...

    @overload
    def number(self, key: str, default: None, least: float, most: float, *, above: bool = False) -> float | None: ...

    def number(
        self, key: str, default: float | None, least: float, most: float, *, above: bool = False
    ) -> float | None:
        """Reads a number from `least`, or above it, to `most`."""
        value = self._number(key)
        if value is None:
            return default
        if not least <= value <= most or (above and value == least):
            bounds = f"above {least:g} and up to {most:g}" if above else f"from {least:g} to {most:g}"
            raise ValueError(f"{key} is {value!r}; expected a number {bounds}")
        return float(value)

    def _number(self, key: str) -> int | float | None:
        value = self.values.get(key)
        if value is not None and (not isinstance(value, int | float) or isinstance(value, bool)):
            raise ValueError(f"{key} is {value!r}; expected a number")
        return value

    def _within(self, key: str, token: int) -> int:
        if not 0 <= token < self.vocabulary:
            raise ValueError(f"{key} has the token id {token}; expected one from 0 to {self.vocabulary - 1}")
        return token


def _is_ids(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(id_, int) and not isinstance(id_, bool) for id_ in value)
