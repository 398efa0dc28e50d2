"""Strategies for unusual requests: valid messages with awkward values, damaged messages, and random bytes."""

import json
from collections.abc import Callable, Sequence
from typing import Any, cast

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from hypothesis import strategies as st

from dragoman.v1 import generation_pb2 as pb
from dragoman_server.messages.protobuf_encoding import varint

MAX_CHANGES = 4  # of one message
DEPTH = 4
MAX_COPIES = 2000  # of an element of a list

TEXTS = [
    "",
    " ",
    "\0",
    "dragoman\0dragoman",
    "\u202edragoman\u202c",  # right to left, and back
    "\u2067שלום\u2069 مرحبا",
    "e" + "\u0301" * 400,  # displayed as one character
    "\N{WOMAN}\u200d\N{PERSONAL COMPUTER}\N{EMOJI MODIFIER FITZPATRICK TYPE-5}",
    "\ufdfa" * 300,  # eighteen characters each after normalization
    "\u0130ß\u1e9eﬀ",  # the length depends on the case
    "\ufeff\ufffe\uffff\U0010ffff",
    "\U0001f600" * 1000,
    "\ue000\U000f0000\u2028\u2029\x85\x7f\x1b[31m",
    "a" * 100_000,
    "<s></s><pad><unk>",
    "%s%n{0}{name}$(id)../../etc/passwd",
    "g2p-en",
    "g2p-en@latest",
    "g2p-en@1",
    "@",
    "model:g2p-en",
    "text",
    "BYTES",
    "shared_memory_region",
]
NUMBERS = [0, 1, -1, 2, 3, 4, 42, 43, 255, 2**16, 2**31 - 1, -(2**31), 2**32 - 1, 2**63 - 1, -(2**63), 2**64 - 1]
RANGES = {
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
}
JSON = [
    "null",
    "NaN",
    "[Infinity]",
    "1e999",
    "-0",
    "9" * 5000,
    "[" * 100_000,
    '["\\ud800"]',  # half of a surrogate pair
    '["a", 5, null]',
    "[true]",
    "[1e3]",
    "[99999999999999999999]",
    '{"a": [1]}',
    "[[], [[5]]]",
    '["a", "a"]',
    "[5, 5]",
    "true",
    "0.5",
    "12",
]
# Keys of map entries.
KEYS = [
    *(field.name for field in pb.GenerationOptions.DESCRIPTOR.fields),
    *(field.name for field in pb.Details.DESCRIPTOR.fields),
    *("timeout", "priority", "triton_enable_empty_final_response", "binary_data", "content_type", "unload_dependents"),
]


def texts() -> st.SearchStrategy[str]:
    json_texts = st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
        max_leaves=6,
    ).map(json.dumps)
    return st.sampled_from(TEXTS) | st.sampled_from(JSON) | st.text(max_size=20) | json_texts


def scalars(field: FieldDescriptor) -> st.SearchStrategy[Any]:
    """Returns a strategy for the values of a scalar field, with a preference for awkward ones."""
    kind = field.cpp_type
    if field.type == FieldDescriptor.TYPE_BYTES:
        lengths = st.integers(0, 2**32 - 1).map(lambda length: length.to_bytes(4, "little") + b"dragoman")
        return texts().map(str.encode) | st.binary(max_size=40) | lengths
    if kind == FieldDescriptor.CPPTYPE_STRING:
        return texts()
    if kind == FieldDescriptor.CPPTYPE_BOOL:
        return st.booleans()
    if kind == FieldDescriptor.CPPTYPE_FLOAT:
        return st.floats(width=32)
    if kind == FieldDescriptor.CPPTYPE_DOUBLE:
        return st.floats()
    low, high = RANGES.get(kind, RANGES[FieldDescriptor.CPPTYPE_INT32])  # enums take any number
    return st.sampled_from([number for number in NUMBERS if low <= number <= high]) | st.integers(low, high)


@st.composite
def messages(draw: st.DrawFn, valid: Sequence[Message]) -> Message:
    """Draws one of the valid messages, all of one type, and changes some of its fields."""
    message: Message = type(valid[0])()
    message.CopyFrom(draw(st.sampled_from(valid)))
    if _fields(message):
        for _ in range(draw(st.integers(0, MAX_CHANGES))):
            _change(draw, message, DEPTH)
    return message


def payloads(valid: Sequence[Message]) -> st.SearchStrategy[bytes]:
    """Returns a strategy for request bytes: usually a message, else a damaged one or random bytes."""
    wire = messages(valid).map(lambda message: message.SerializeToString())
    return st.one_of(wire, wire, wire, _damaged(wire), _malformed_fields(_fields(valid[0])), st.binary(max_size=60))


def _fields(message: Message) -> list[FieldDescriptor]:
    return list(cast("Descriptor", message.DESCRIPTOR).fields)


def _change(draw: st.DrawFn, message: Message, depth: int) -> None:
    field = draw(st.sampled_from(_fields(message)))
    value: Any = getattr(message, field.name)
    if draw(st.integers(0, 9)) == 0:
        message.ClearField(field.name)
    elif field.message_type is not None and field.message_type.GetOptions().map_entry:
        _put_entry(draw, value, field.message_type, depth)
    elif field.is_repeated:
        if len(value) and draw(st.booleans()):
            _repeat(draw, value)
        elif field.message_type is None:
            value.extend(draw(st.lists(scalars(field), min_size=1, max_size=4)))
        else:
            _descend(
                draw, draw(st.sampled_from(list(value))) if len(value) and draw(st.booleans()) else value.add(), depth
            )
    elif field.message_type is not None:
        value.SetInParent()
        _descend(draw, value, depth)
    else:
        setattr(message, field.name, draw(scalars(field)))


def _descend(draw: st.DrawFn, message: Message, depth: int) -> None:
    if depth and _fields(message):
        for _ in range(draw(st.integers(1, 3))):
            _change(draw, message, depth - 1)


def _put_entry(draw: st.DrawFn, entries: Any, entry: Descriptor, depth: int) -> None:
    key = draw(st.sampled_from(KEYS) | texts())
    if entry.fields_by_name["value"].message_type is None:
        entries[key] = draw(scalars(entry.fields_by_name["value"]))
    else:
        entries[key].SetInParent()
        _descend(draw, entries[key], min(depth, 1))


def _repeat(draw: st.DrawFn, values: Any) -> None:
    """Repeats an element, within the maximum size of a message."""
    value = values[0]
    size = value.ByteSize() if isinstance(value, Message) else len(value) if isinstance(value, str | bytes) else 10
    values.extend([value] * draw(st.sampled_from([1, 70, min(MAX_COPIES, 1_000_000 // (size + 10))])))


def _damaged(wire: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    """Returns a strategy for messages that are truncated, overwritten in places, or concatenated."""
    places = st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=4)
    return st.one_of(
        st.tuples(wire, st.integers(0, 10_000)).map(lambda pair: pair[0][: pair[1] % (len(pair[0]) + 1)]),
        st.tuples(wire, places).map(lambda pair: _overwritten(*pair)),
        st.tuples(wire, wire).map(b"".join),
    )


def _overwritten(wire: bytes, places: list[tuple[int, int]]) -> bytes:
    overwritten = bytearray(wire or b"\0")
    for place, byte in places:
        overwritten[place % len(overwritten)] = byte
    return bytes(overwritten)


def _malformed_fields(fields: list[FieldDescriptor]) -> st.SearchStrategy[bytes]:
    """Returns a strategy for fields with unknown numbers or wrong types, in every wire type, and deeply nested."""
    numbers = st.sampled_from([*(field.number for field in fields), 99, 19_000, 2**29 - 1])
    makers: list[Callable[[int], bytes]] = [
        lambda number: varint(number << 3) + varint(2**64 - 1),
        lambda number: varint(number << 3) + b"\xff" * 11,  # an endless varint
        lambda number: varint(number << 3 | 1) + b"\xff" * 8,
        lambda number: varint(number << 3 | 2) + varint(2**31 - 1) + b"short",
        lambda number: varint(number << 3 | 2) + varint(3) + b"\xed\xa0\x80",  # half of a surrogate pair
        lambda number: varint(number << 3 | 2) + varint(0),
        lambda number: varint(number << 3 | 3) + varint(number << 3 | 4),  # a group
        lambda number: varint(number << 3 | 3) * 5000,
        lambda number: varint(number << 3 | 4),
        lambda number: varint(number << 3 | 5) + b"\0\0\xc0\x7f",
        lambda number: varint(number << 3 | 7),
        lambda number: nest(number, 200),
    ]
    parts = st.tuples(st.sampled_from(makers), numbers).map(lambda pair: pair[0](pair[1]))
    return st.lists(parts, min_size=1, max_size=3).map(b"".join)


def nest(number: int, depth: int) -> bytes:
    """Returns a message that is nested in itself, in the same field, `depth` times."""
    wire = b""
    for _ in range(depth):
        wire = varint(number << 3 | 2) + varint(len(wire)) + wire
    return wire
