"""What one request may ask for at most."""

from dragoman.v1 import generation_pb2 as pb
from server.bundle.manifest import Shape

TOP_TOKENS = 20
STOP_SEQUENCES = 16
STOP_SEQUENCE_CHARACTERS = 256
# Each has an edit in every step of every row.
SUPPRESSED_SEQUENCES = 256
SUPPRESSED_TOKENS = 1024
BATCH_ITEMS = 10_000
SCORE_TARGETS = 64
# Weights of attention in one response: 16 MiB, which take 30 milliseconds of the event loop to write.
ATTENTION_WEIGHTS = 2**22


def request_limits(max_beam_size: int, max_hypotheses: int, max_rows: int, shape: Shape) -> pb.Limits:
    """The limits of a model.

    Args:
        max_beam_size, max_hypotheses: as configured; a request never gets more rows than an engine has.
        max_rows: of an engine.
    """
    beam_size = min(max_beam_size, max_rows)
    return pb.Limits(
        beam_size=beam_size,
        hypotheses=min(max(max_hypotheses, beam_size), max_rows),
        top_tokens=min(TOP_TOKENS, shape.target_vocabulary),
        stop_sequences=STOP_SEQUENCES,
        stop_sequence_characters=STOP_SEQUENCE_CHARACTERS,
        suppressed_sequences=SUPPRESSED_SEQUENCES,
        suppressed_tokens=SUPPRESSED_TOKENS,
        batch_items=BATCH_ITEMS,
        score_targets=SCORE_TARGETS,
        attention_weights=ATTENTION_WEIGHTS,
    )
