"""Reads the parameters of an inference request as the options and details with the same names."""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NoReturn, cast

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from google.rpc import error_details_pb2

from dragoman.inference import open_inference_pb2 as oip
from dragoman.v1 import generation_pb2 as pb
from dragoman_server.messages.api_error import ApiError, invalid
from dragoman_server.messages.error_text import shorten
from dragoman_server.messages.languages import FIELDS
from dragoman_server.messages.limits import SUPPRESSED_SEQUENCES

# Details that this protocol can't return: they need more than a tensor of strings or numbers.
UNAVAILABLE = ("alignment", "attention")
PRIORITIES = {"interactive": pb.PRIORITY_INTERACTIVE, "batch": pb.PRIORITY_BATCH}
MAX_SECONDS = 315_576_000_000  # of google.protobuf.Duration
# Enough for the ids of a large vocabulary; parsed in some hundredths of a second.
MAX_JSON_CHARACTERS = 2**20


class Parameters:
    """The parameters of one request.

    Attributes:
        options: Options of the generation.
        details: What to return in addition to the text.
        priority: The priority; PRIORITY_UNSPECIFIED if the request does not name one.
        languages: An input without a text, with the languages of all texts as far as the request names them.
        timeout: Seconds from the arrival of the request until it fails; None for no limit.

    Raises:
        ApiError: a parameter is unknown, or has the wrong type.
    """

    def __init__(self, parameters: Mapping[str, oip.InferParameter]) -> None:
        self.options = pb.GenerationOptions()
        self.details = pb.Details()
        self.priority = pb.PRIORITY_UNSPECIFIED
        self.languages = pb.Input()
        self.timeout: float | None = None
        own = {"priority": self._read_priority, "timeout": self._read_timeout}
        for name, parameter in parameters.items():
            value = _value(name, parameter)
            if name in own:
                own[name](value)
            elif name in UNAVAILABLE:
                _refuse(name, "is not available in this protocol; use dragoman.v1.GenerationService")
            elif name in FIELDS.values():
                if not isinstance(value, str):
                    _refuse(name, "must be a string")
                setattr(self.languages, name, value)
            elif field := _field(self.options, name):
                _fill(self.options, field, value)
            elif field := _field(self.details, name):
                _fill(self.details, field, value)
            elif name != "triton_enable_empty_final_response":  # the last response is always marked
                _refuse(shorten(name), "is not a parameter of this server")

    def source(self, text: str) -> pb.Input:
        """Returns a text as an input, in the languages of the request."""
        source = pb.Input(text=text)
        source.MergeFrom(self.languages)
        return source

    def _read_priority(self, value: Any) -> None:
        # A name, or a number as in Triton, where 1 is the highest priority.
        known = PRIORITIES.get(value) if isinstance(value, str) else None
        if known is None and _is_integer(value) and value >= 0:
            known = [pb.PRIORITY_UNSPECIFIED, pb.PRIORITY_INTERACTIVE, pb.PRIORITY_BATCH][min(value, 2)]
        if known is None:
            _refuse("priority", "must be 'interactive' or 1, or 'batch' or 2")
        self.priority = known

    def _read_timeout(self, value: Any) -> None:
        if not _is_integer(value) or value < 0:
            _refuse("timeout", "must be a whole number of microseconds")
        self.timeout = value * 1e-6 if value else None  # in Triton, 0 means none


@contextmanager
def translate_field_names() -> Iterator[None]:
    """Renames the fields in errors of dragoman.v1 to those of this protocol."""
    try:
        yield
    except ApiError as error:
        if not isinstance(error.detail, error_details_pb2.BadRequest):
            raise
        [violation] = error.detail.field_violations
        if (name := _translated(violation.field)) == violation.field:
            raise
        raise invalid(name, violation.description) from None


def _translated(field: str) -> str:
    """Returns the name of a field in this protocol, such as "parameters.prefix" for "options.prefix.text"."""
    if match := re.match(r"(?:options|details)\.(\w+)(?:\[\d+\])?", field):
        places = "".join(re.findall(r"\[\d+\]", field))
        return f"parameters.{match[1]}{places}"
    if match := re.fullmatch(r"inputs?(?:\[\d+\])?\.(\w+_language)", field):
        return f"parameters.{match[1]}"
    if match := re.match(r"inputs?(\[\d+\])?", field):
        return f"text{match[1] or '[0]' if field != 'inputs' else ''}"
    return {"model": "model_name", "priority": "parameters.priority"}.get(field, field)


def _value(name: str, parameter: oip.InferParameter) -> Any:
    kind = parameter.WhichOneof("parameter_choice")
    if kind is None:
        _refuse(shorten(name), "has no value")
    return getattr(parameter, kind)


def _field(message: Message, name: str) -> FieldDescriptor | None:
    return cast("FieldDescriptor | None", message.DESCRIPTOR.fields_by_name.get(name))


def _fill(message: Message, field: FieldDescriptor, value: Any) -> None:
    """Sets a field of the options or details. A string for a field that is not a string is parsed as JSON.

    Raises:
        ApiError: the value does not have the type of the field.
    """
    name = field.name
    if isinstance(value, str) and name != "prefix" and field.enum_type is None:
        if len(value) > MAX_JSON_CHARACTERS:
            _refuse(name, f"has {len(value)} characters, but at most {MAX_JSON_CHARACTERS} are allowed")
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            _refuse(name, f"is a string, but must be {_type(field)}")
    convert = CONVERTERS.get(name)
    try:
        if convert is not None:
            convert(message, value)
        elif field.enum_type is not None:
            setattr(message, name, _enum_number(field, value))
        elif not _has_type(field, value):
            _refuse(name, f"must be {_type(field)}")
        else:
            setattr(message, name, value)
    except (KeyError, TypeError, ValueError, OverflowError):
        _refuse(name, f"must be {_type(field)}")


def _has_type(field: FieldDescriptor, value: Any) -> bool:
    if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
        return isinstance(value, bool)
    if field.cpp_type == FieldDescriptor.CPPTYPE_FLOAT:
        return isinstance(value, float) or _is_integer(value)
    return _is_integer(value)


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _enum_number(field: FieldDescriptor, value: Any) -> int:
    assert field.enum_type is not None
    prefix = re.sub(r"(?<!^)(?=[A-Z])", "_", field.enum_type.name).upper() + "_"
    number: int = field.enum_type.values_by_name[prefix + str(value).upper().removeprefix(prefix)].number
    return number


def _type(field: FieldDescriptor) -> str:
    """Describes the type of a field, for errors."""
    if field.name in TYPES:
        return TYPES[field.name]
    if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
        return "true or false"
    if field.cpp_type == FieldDescriptor.CPPTYPE_FLOAT:
        return "a number"
    if field.cpp_type == FieldDescriptor.CPPTYPE_INT32:
        return "a 32-bit whole number"
    return f"a whole number from 0 to {2**64 - 1}"


def _put_time_limit(options: pb.GenerationOptions, value: Any) -> None:
    if not isinstance(value, float) and not _is_integer(value):
        raise TypeError
    if not abs(value) <= MAX_SECONDS:
        raise ValueError
    options.time_limit.FromNanoseconds(round(value * 1e9))


def _put_prefix(options: pb.GenerationOptions, value: Any) -> None:
    if not isinstance(value, str):
        raise TypeError
    options.prefix.text = value


def _put_stop_sequences(options: pb.GenerationOptions, value: Any) -> None:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise TypeError
    options.stop_sequences.extend(value)


def _put_suppressed_tokens(options: pb.GenerationOptions, value: Any) -> None:
    options.suppressed_tokens.extend(_ids(value))


def _put_vocabulary(options: pb.GenerationOptions, value: Any) -> None:
    options.vocabulary.CopyFrom(pb.TokenIds(ids=_ids(value)))


def _put_suppressed_sequences(options: pb.GenerationOptions, value: Any) -> None:
    if not isinstance(value, list):
        raise TypeError
    if len(value) > SUPPRESSED_SEQUENCES:  # checked before they become messages
        _refuse("suppressed_sequences", f"has {len(value)} sequences, but at most {SUPPRESSED_SEQUENCES} are allowed")
    for item in value:
        text = isinstance(item, str)
        options.suppressed_sequences.append(
            pb.Input(text=item) if text else pb.Input(token_ids=pb.TokenIds(ids=_ids(item)))
        )


def _ids(value: Any) -> list[int]:
    if not isinstance(value, list) or not all(map(_is_integer, value)):
        raise TypeError
    return value


# How to set fields that are not plain numbers or booleans.
CONVERTERS: dict[str, Callable[[Any, Any], None]] = {
    "time_limit": _put_time_limit,
    "prefix": _put_prefix,
    "stop_sequences": _put_stop_sequences,
    "suppressed_tokens": _put_suppressed_tokens,
    "suppressed_sequences": _put_suppressed_sequences,
    "vocabulary": _put_vocabulary,
}
# Types of fields, for errors.
TYPES = {
    "time_limit": "a number of seconds",
    "prefix": "a string",
    "stop_sequences": 'a JSON array of strings, such as ["a", "b"]',
    "suppressed_tokens": "a JSON array of token ids, such as [5, 7]",
    "suppressed_sequences": 'a JSON array of strings or arrays of token ids, such as ["a", [5, 7]]',
    "vocabulary": "a JSON array of token ids, such as [5, 7]",
    "length_normalization": "LENGTH, GNMT or NONE",
    "stopping": "EXACT, EARLY, CURRENT_LENGTH or MAX_LENGTH",
}


def _refuse(name: str, problem: str) -> NoReturn:
    raise invalid(f"parameters.{name}", problem)
