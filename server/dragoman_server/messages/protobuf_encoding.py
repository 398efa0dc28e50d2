"""Assembles messages from parts that are already in protobuf's wire format.

Serializing many megabytes, or millions of numbers, in one call would block the event loop.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EncodedMessage:
    """A serialized message."""

    content: bytes


def length_delimited(number: int, content: bytes) -> bytes:
    """Encodes a field whose value is a message, bytes, a string or packed numbers, or one element of a repeated field.

    Args:
        number: Number of the field.
    """
    return varint(number << 3 | 2) + varint(len(content)) + content


def varint(number: int) -> bytes:
    """Encodes an integer as a protobuf varint: seven bits per byte, the lowest first."""
    encoded = bytearray()
    while number > 127:
        encoded.append(number & 127 | 128)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)
