"""Upper limits of one request."""

from dragoman.v1 import generation_pb2 as pb
from dragoman_server.bundle.manifest import Limits, Shape
from dragoman_server.config import ServerConfig

TOP_TOKENS = 20
STOP_SEQUENCE_CHARACTERS = 256
# Each takes a logit edit in every step of every row.
SUPPRESSED_SEQUENCES = 256
SUPPRESSED_TOKENS = 1024
SCORE_TARGETS = 64
# Attention weights in one response: 16 MiB, which take 30 milliseconds of the event loop to write.
ATTENTION_WEIGHTS = 2**22


def request_limits(config: ServerConfig, max_rows: int, shape: Shape) -> pb.Limits:
    """Returns the limits of a model's requests.

    Args:
        config: The server's configuration.
        max_rows: Cache rows of an engine; a request never gets more.
    """
    beam_size = min(config.max_beam_size, max_rows)
    return pb.Limits(
        beam_size=beam_size,
        hypotheses=min(max(config.max_hypotheses, beam_size), max_rows),
        top_tokens=min(TOP_TOKENS, shape.target_vocabulary),
        stop_sequences=config.max_stop_sequences,
        stop_sequence_characters=STOP_SEQUENCE_CHARACTERS,
        suppressed_sequences=SUPPRESSED_SEQUENCES,
        suppressed_tokens=SUPPRESSED_TOKENS,
        batch_items=config.max_batch_items,
        score_targets=SCORE_TARGETS,
        attention_weights=ATTENTION_WEIGHTS,
        answer_bytes=config.max_answer_bytes,
    )


def token_limits(config: ServerConfig, own: Limits) -> Limits:
    """Returns the maximum tokens of one input: those of the bundle, or lower ones from the configuration."""
    return Limits(
        max_source_tokens=min(own.max_source_tokens, config.max_source_tokens or own.max_source_tokens),
        max_target_tokens=min(own.max_target_tokens, config.max_target_tokens or own.max_target_tokens),
    )
