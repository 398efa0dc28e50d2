"""How a request that comes compressed is unpacked."""

import gzip
from collections.abc import Callable

import grpc
import pytest

from dragoman.v1 import generation_pb2 as pb
from dragoman_server.api.message_codec import decompress
from dragoman_server.messages.api_error import ApiError

MOST = 1000


@pytest.mark.parametrize("size", [0, 1, MOST - 1, MOST])
def test_what_is_small_enough_is_unpacked(size: int) -> None:
    assert decompress(gzip.compress(b"a" * size), MOST) == b"a" * size


def test_what_is_not_compressed_stays_as_it_is() -> None:
    message = pb.GenerateRequest(input=pb.Input(text="\x1f\x8b" * MOST)).SerializeToString()
    assert decompress(message, MOST) is message


@pytest.mark.parametrize("size", [MOST + 1, 1000 * MOST])
def test_what_is_too_large_is_refused(size: int) -> None:
    with pytest.raises(ApiError, match="unpacks to more than 1000 bytes") as refused:
        decompress(gzip.compress(b"a" * size), MOST)
    assert refused.value.code is grpc.StatusCode.RESOURCE_EXHAUSTED


@pytest.mark.parametrize("change", [lambda data: data[:-1], lambda data: data + b"a", lambda data: data[:4]])
def test_what_is_no_whole_gzip_is_malformed(change: Callable[[bytes], bytes]) -> None:
    with pytest.raises(ApiError, match="can't be parsed") as refused:
        decompress(change(gzip.compress(b"a" * 100)), MOST)
    assert refused.value.code is grpc.StatusCode.INVALID_ARGUMENT


def test_what_unpacks_to_far_more_than_it_is_costs_no_more_than_a_little() -> None:
    most = 4 * 2**20
    honest = b"".join(b"input %d of a batch " % number for number in range(100_000))[:most]
    assert decompress(gzip.compress(honest), most) == honest
    assert len(decompress(gzip.compress(b"a" * 60_000), most)) == 60_000, "small ones may be as dense as they like"
    with pytest.raises(ApiError, match="more than 64 times its size; send it uncompressed") as refused:
        decompress(gzip.compress(b"a" * most), most)
    assert refused.value.code is grpc.StatusCode.RESOURCE_EXHAUSTED
