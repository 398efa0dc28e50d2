"""The parameters of an inference request, as the options and details that they are named after."""

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
from dragoman_server.messages.limits import SUPPRESSED_SEQUENCES

# Not told here: they need more than a tensor of texts and numbers.
NOT_TOLD = ("alignment", "attention")
PRIORITIES = {"interactive": pb.PRIORITY_INTERACTIVE, "batch": pb.PRIORITY_BATCH}
MOST_SECONDS = 315_576_000_000  # of google.protobuf.Duration
# Characters of JSON: room for all tokens of a large vocabulary, and read in some hundredths of a second.
MOST_JSON = 2**20


class Parameters:
    """What a request's parameters say.

    Attributes:
        options, details: of the generation.
        priority: PRIORITY_UNSPECIFIED where it is left to us.
        timeout: seconds from the request's arrival after which nobody waits for the answer, None for no limit.

    Raises:
        ApiError: a parameter is unknown, or not of its type.
    """

    def __init__(self, parameters: Mapping[str, oip.InferParameter]) -> None:
        self.options = pb.GenerationOptions()
        self.details = pb.Details()
        self.priority = pb.PRIORITY_UNSPECIFIED
        self.timeout: float | None = None
        own = {"priority": self._read_priority, "timeout": self._read_timeout}
        for name, parameter in parameters.items():
            value = _value(name, parameter)
            if name in own:
                own[name](value)
            elif name in NOT_TOLD:
                _refuse(name, "is not told in this protocol; ask dragoman.v1.GenerationService")
            elif field := _field(self.options, name):
                _fill(self.options, field, value)
            elif field := _field(self.details, name):
                _fill(self.details, field, value)
            elif name != "triton_enable_empty_final_response":  # the last response is told from the others in any case
                _refuse(shorten(name), "is not a parameter of this server")

    def _read_priority(self, value: Any) -> None:
        # A name, or a number as Triton has it: 1 goes first.
        known = PRIORITIES.get(value) if isinstance(value, str) else None
        if known is None and _is_integer(value) and value >= 0:
            known = [pb.PRIORITY_UNSPECIFIED, pb.PRIORITY_INTERACTIVE, pb.PRIORITY_BATCH][min(value, 2)]
        if known is None:
            _refuse("priority", "must be 'interactive' or 1, or 'batch' or 2")
        self.priority = known

    def _read_timeout(self, value: Any) -> None:
        if not _is_integer(value) or value < 0:
            _refuse("timeout", "must be a whole number of microseconds")
        self.timeout = value * 1e-6 if value else None  # 0 is Triton's word for none


@contextmanager
def translate_field_names() -> Iterator[None]:
    """Lets errors name what this protocol calls the fields of the other."""
    try:
        yield
    except ApiError as error:
        if not isinstance(error.detail, error_details_pb2.BadRequest):
            raise
        [violation] = error.detail.field_violations
        if (name := _name(violation.field)) == violation.field:
            raise
        raise invalid(name, violation.description) from None


def _name(field: str) -> str:
    """As the request has it: "options.prefix.text" is "parameters.prefix", "inputs[3].text" is "text[3]"."""
    if match := re.match(r"(?:options|details)\.(\w+)(?:\[\d+\])?", field):
        places = "".join(re.findall(r"\[\d+\]", field))
        return f"parameters.{match[1]}{places}"
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
    """Sets a field. Texts are taken as they are; for any other field a string holds JSON.

    Raises:
        ApiError: the value is not of the field's type.
    """
    name = field.name
    if isinstance(value, str) and name != "prefix" and field.enum_type is None:
        if len(value) > MOST_JSON:
            _refuse(name, f"has {len(value)} characters, but {MOST_JSON} at most are read")
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
        elif not _suits(field, value):
            _refuse(name, f"must be {_type(field)}")
        else:
            setattr(message, name, value)
    except (TypeError, ValueError, OverflowError):
        _refuse(name, f"must be {_type(field)}")


def _suits(field: FieldDescriptor, value: Any) -> bool:
    if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
        return isinstance(value, bool)
    if field.cpp_type == FieldDescriptor.CPPTYPE_FLOAT:
        return isinstance(value, float) or _is_integer(value)
    return _is_integer(value)


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _enum_number(field: FieldDescriptor, value: Any) -> int:
    prefix = "LENGTH_NORMALIZATION_"
    number: int = pb.LengthNormalization.Value(prefix + str(value).upper().removeprefix(prefix))
    return number


def _type(field: FieldDescriptor) -> str:
    """What a value of the field has to be, for errors."""
    if field.name in TYPES:
        return TYPES[field.name]
    if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
        return "true or false"
    if field.cpp_type == FieldDescriptor.CPPTYPE_FLOAT:
        return "a number"
    if field.cpp_type == FieldDescriptor.CPPTYPE_INT32:
        return "a whole number of 32 bits"
    return f"a whole number in 0 to {2**64 - 1}"


def _put_time_limit(options: pb.GenerationOptions, value: Any) -> None:
    if not isinstance(value, float) and not _is_integer(value):
        raise TypeError
    if not abs(value) <= MOST_SECONDS:
        raise ValueError
    options.time_limit.FromNanoseconds(round(value * 1e9))


def _put_prefix(options: pb.GenerationOptions, value: Any) -> None:
    if not isinstance(value, str):
        raise TypeError
    options.prefix.text = value


def _put_texts(options: pb.GenerationOptions, value: Any) -> None:
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise TypeError
    options.stop_sequences.extend(value)


def _put_tokens(options: pb.GenerationOptions, value: Any) -> None:
    options.suppressed_tokens.extend(_ids(value))


def _put_vocabulary(options: pb.GenerationOptions, value: Any) -> None:
    options.vocabulary.CopyFrom(pb.TokenIds(ids=_ids(value)))


def _put_sequences(options: pb.GenerationOptions, value: Any) -> None:
    if not isinstance(value, list):
        raise TypeError
    if len(value) > SUPPRESSED_SEQUENCES:  # before each becomes a message
        _refuse("suppressed_sequences", f"has {len(value)} sequences, but at most {SUPPRESSED_SEQUENCES} are taken")
    for each in value:
        text = isinstance(each, str)
        options.suppressed_sequences.append(
            pb.Input(text=each) if text else pb.Input(token_ids=pb.TokenIds(ids=_ids(each)))
        )


def _ids(value: Any) -> list[int]:
    if not isinstance(value, list) or not all(map(_is_integer, value)):
        raise TypeError
    return value


CONVERTERS: dict[str, Callable[[Any, Any], None]] = {
    "time_limit": _put_time_limit,
    "prefix": _put_prefix,
    "stop_sequences": _put_texts,
    "suppressed_tokens": _put_tokens,
    "suppressed_sequences": _put_sequences,
    "vocabulary": _put_vocabulary,
}
TYPES = {
    "time_limit": "a number of seconds",
    "prefix": "a text",
    "stop_sequences": 'a JSON array of texts, such as ["a", "b"]',
    "suppressed_tokens": "a JSON array of token ids, such as [5, 7]",
    "suppressed_sequences": 'a JSON array of texts or of arrays of token ids, such as ["a", [5, 7]]',
    "vocabulary": "a JSON array of token ids, such as [5, 7]",
    "length_normalization": "LENGTH, GNMT or NONE",
}


def _refuse(name: str, problem: str) -> NoReturn:
    raise invalid(f"parameters.{name}", problem)
