"""The phases of a call."""

from collections.abc import Iterator

from dragoman_server.core.call_record import CallRecord

Phase = tuple[str, float, float]


def phases(record: CallRecord) -> Iterator[Phase]:
    """Yields name, start and end (time.monotonic()) of the phases that a call reached, in order.

    The end of the call may cut the last one short. For a batch, the engine phases are those of the slowest item.
    """
    start = record.started
    for name, end in _ends(record):
        end = min(end or record.ended, record.ended)  # an engine may continue briefly after the client left
        if name != "receive":
            yield name, start, end
        start = end
        if end == record.ended:
            return


def _ends(record: CallRecord) -> Iterator[tuple[str, float]]:
    """Yields name and end of each phase, 0.0 if it did not end; each begins where the previous one ends."""
    yield "receive", record.tokenizing
    yield "tokenize", record.tokenized
    if (stages := record.stages) is None:
        return
    yield "queue", stages.encoding or stages.decoded  # the latter if its time limit passed in the queue
    if stages.encoding:
        yield "encode", stages.encoded
        yield "decode", stages.decoded
    yield "detokenize", stages.answered
