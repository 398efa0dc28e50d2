"""Messages put together from parts that are in protobuf's wire format already.

One call that serializes many megabytes, or millions of numbers, keeps the event loop all the time.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EncodedMessage:
    """A message as it is sent."""

    content: bytes


def length_delimited(number: int, content: bytes) -> bytes:
    """A field that is a message, bytes, a text or packed numbers; of a repeated one, an element.

    Args:
        number: of the field.
    """
    return varint(number << 3 | 2) + varint(len(content)) + content


def varint(number: int) -> bytes:
    """As protobuf writes it: seven bits in a byte, the lowest first."""
    encoded = bytearray()
    while number > 127:
        encoded.append(number & 127 | 128)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)
