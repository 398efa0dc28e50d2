"""How the time of a call was spent."""

from collections.abc import Iterator

from dragoman_server.core.call_record import CallRecord

Phase = tuple[str, float, float]


def phases(record: CallRecord) -> Iterator[Phase]:
    """Names, starts and ends, as time.monotonic(), of the phases that a call got to, in order. The last may be cut.

    Those of the engines are, for a batch, of the input that took longest.
    """
    start = record.started
    for name, end in _ends(record):
        end = min(end or record.ended, record.ended)  # engines go on for a moment after a client has left
        if name != "receive":
            yield name, start, end
        start = end
        if end == record.ended:
            return


def _ends(record: CallRecord) -> Iterator[tuple[str, float]]:
    """Each begins where the one before ends; 0.0 for one that was not ended by itself."""
    yield "receive", record.tokenizing
    yield "tokenize", record.tokenized
    if (stages := record.stages) is None:
        return
    yield "queue", stages.encoding or stages.decoded  # the latter where it spent all of its time in the queue
    if stages.encoding:
        yield "encode", stages.encoded
        yield "decode", stages.decoded
    yield "detokenize", stages.answered
