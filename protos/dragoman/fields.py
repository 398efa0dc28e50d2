"""Fields of messages from Python values. What a field cannot carry is refused; all else is the server's to judge."""

import math
from collections.abc import Iterable, Sequence
from typing import Any, Literal, TypeAlias, TypeVar

from google.protobuf import duration_pb2

from dragoman.v1 import generation_pb2 as pb

Source: TypeAlias = str | Sequence[int]
"""What to generate from: a text, or the source token ids of one."""

Target: TypeAlias = str | Sequence[int]
"""What the model writes: a text, or the target token ids of one."""

Side = Literal["source", "target"]
LengthNormalization = Literal["length", "gnmt", "none"]
Priority = Literal["interactive", "batch"]

Choice = TypeVar("Choice")

_SIDES = {"source": pb.SIDE_SOURCE, "target": pb.SIDE_TARGET}
_LENGTH_NORMALIZATIONS = {
    "length": pb.LENGTH_NORMALIZATION_LENGTH,
    "gnmt": pb.LENGTH_NORMALIZATION_GNMT,
    "none": pb.LENGTH_NORMALIZATION_NONE,
}
_PRIORITIES = {"interactive": pb.PRIORITY_INTERACTIVE, "batch": pb.PRIORITY_BATCH}
_INT32 = range(-(2**31), 2**31)
_UINT64 = range(2**64)
_FLOAT32_MAX = (2 - 2**-23) * 2.0**127
_DURATION_MAX_SECONDS = 315_576_000_000  # 10,000 years


def text(value: Any, name: str) -> str:
    """Refuses what UTF-8, and so protobuf, cannot carry.

    Raises:
        ValueError: there is a lone surrogate; the message shows the text and gives the position, counted from 0.
        TypeError: it is no str.
    """
    if not isinstance(value, str):
        raise TypeError(f"{name}: expected a str, got {type(value).__name__}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        code = ord(value[error.start])
        # os.fsdecode and errors="surrogateescape" turn undecodable bytes into these.
        byte = f" (byte 0x{code - 0xDC00:02X}, which is not valid UTF-8)" if 0xDC80 <= code <= 0xDCFF else ""
        shown = value if len(value) <= 60 else value[max(0, error.start - 30) : error.start + 30]
        raise ValueError(
            f"{name}: {shown!a} has the lone surrogate U+{code:04X} at position {error.start}{byte} and cannot be sent"
        ) from None
    return value


def int32(value: Any, name: str) -> int:
    return _integer(value, name, _INT32, "32 bits")


def uint64(value: Any, name: str) -> int:
    return _integer(value, name, _UINT64, "64 bits without a sign")


def float32(value: Any, name: str) -> float:
    if isinstance(value, str) or not hasattr(value, "__float__"):
        raise TypeError(f"{name}: expected a number, got {value!r}")
    number = float(value)
    if not abs(number) <= _FLOAT32_MAX:  # NaN is not, either
        raise ValueError(f"{name}: expected a number of 32 bits, got {value!r}")
    return number


def flag(value: Any, name: str) -> bool:
    if value not in (True, False):
        raise TypeError(f"{name}: expected True or False, got {value!r}")
    return bool(value)


def duration(value: Any, name: str) -> duration_pb2.Duration:
    """Of seconds."""
    if not math.isfinite(value) or abs(value) > _DURATION_MAX_SECONDS:
        raise ValueError(f"{name}: expected more than 0 and at most {_DURATION_MAX_SECONDS} seconds, got {value}")
    message = duration_pb2.Duration()
    message.FromNanoseconds(round(value * 1e9))
    return message


def token_ids(values: Any, name: str) -> list[int]:
    return [int32(each, f"{name}[{index}]") for index, each in enumerate(_several(values, name, "token ids"))]


def vocabulary(values: Any, name: str) -> pb.TokenIds:
    return pb.TokenIds(ids=token_ids(values, name))


def texts(values: Any, name: str) -> list[str]:
    return [text(each, f"{name}[{index}]") for index, each in enumerate(_several(values, name, "several texts"))]


def input_(value: Any, name: str = "") -> pb.Input:
    """Of a text, or of the token ids of one. Without a name it is the call's own."""
    if isinstance(value, str):
        return pb.Input(text=text(value, name or "text"))
    if isinstance(value, (bytes, bytearray)) or not isinstance(value, Iterable):
        raise TypeError(f"{name or 'source'}: expected a text or token ids, got {type(value).__name__}")
    return pb.Input(token_ids=pb.TokenIds(ids=token_ids(value, name or "token_ids")))


def inputs(values: Any, name: str) -> list[pb.Input]:
    several = _several(values, name, "several texts or lists of token ids")
    return [input_(each, f"{name}[{index}]") for index, each in enumerate(several)]


def side(value: Any) -> pb.Side:
    return _choice(value, "side", _SIDES)


def priority(value: Any, name: str) -> pb.Priority:
    return _choice(value, name, _PRIORITIES)


def length_normalization(value: Any, name: str) -> pb.LengthNormalization:
    return _choice(value, name, _LENGTH_NORMALIZATIONS)


def _integer(value: Any, name: str, fitting: range, size: str) -> int:
    try:
        number = int(value.__index__())  # integers of every kind (NumPy's too), but no floats
    except AttributeError:
        raise TypeError(f"{name}: expected an integer, got {value!r}") from None
    if number not in fitting:
        raise ValueError(f"{name}: {number} does not fit in {size}")
    return number


def _several(values: Any, name: str, what: str) -> Iterable[Any]:
    # A text is a sequence too, of its characters, which nobody means.
    if isinstance(values, (str, bytes, bytearray)) or not isinstance(values, Iterable):
        raise TypeError(f"{name}: expected {what}, got {type(values).__name__}")
    return values


def _choice(value: Any, name: str, choices: dict[str, Choice]) -> Choice:
    if value not in choices:
        *others, last = (f'"{each}"' for each in choices)
        raise ValueError(f"{name}: expected {', '.join(others)} or {last}, got {value!r}")
    return choices[value]
