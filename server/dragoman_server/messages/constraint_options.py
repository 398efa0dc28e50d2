"""Reads and checks the GenerationOptions that constrain which tokens may follow."""

from dragoman.v1 import generation_pb2 as pb
from dragoman_server.core.search_options import Constraints
from dragoman_server.messages.api_error import invalid
from dragoman_server.messages.option_reader import OptionReader
from dragoman_server.messages.token_ids import TargetEncoder


async def read_constraints(reader: OptionReader, target: TargetEncoder, limits: pb.Limits) -> Constraints:
    """Reads all constraints except min_new_tokens.

    Raises:
        ApiError: an option is invalid, or contradicts another one.
    """
    options = reader.options
    if not reader.has("prefix"):
        reader.require("prefix", ("prefix_bias",))
    bias = reader.number("prefix_bias", 0.0, 0, 1, above=True, below=True) or None
    suppressed = _suppressed_tokens(reader, target, limits)
    sequences = await _suppressed_sequences(options, target, limits)
    suppressed |= {sequence[0] for sequence in sequences if len(sequence) == 1}
    vocabulary = _vocabulary(options, target)
    if options.include_stop_sequence and not options.stop_sequences:
        reader.refuse("include_stop_sequence", "needs stop_sequences")
    constraints = Constraints(
        prefix=await _prefix(options, target),
        prefix_bias=bias,
        suppressed=tuple(sorted(suppressed)),
        suppressed_sequences=tuple(dict.fromkeys(sequence for sequence in sequences if len(sequence) > 1)),
        repetition_penalty=reader.number("repetition_penalty", 1.0, 0.01, 100),
        no_repeat_ngram_size=reader.integer("no_repeat_ngram_size", 0, 0),
        encoder_no_repeat_ngram_size=reader.integer("encoder_no_repeat_ngram_size", 0, 0),
        stop_sequences=_stop_sequences(options, limits),
        include_stop_sequence=options.include_stop_sequence,
        vocabulary=vocabulary,
    )
    if choosable_tokens(constraints, target) == 0:
        field = "suppressed_tokens" if options.suppressed_tokens else "suppressed_sequences"
        reader.refuse(field, "leaves no token to choose except the end token")
    return constraints


def choosable_tokens(constraints: Constraints, target: TargetEncoder) -> int:
    """Returns the number of tokens that may be chosen, the end token excluded."""
    if constraints.vocabulary is None:
        return target.vocabulary_size - len(target.special.keys() | set(constraints.suppressed))
    return len(set(constraints.vocabulary).difference(constraints.suppressed)) - 1


async def _prefix(options: pb.GenerationOptions, target: TargetEncoder) -> tuple[int, ...]:
    if not options.HasField("prefix"):
        return ()
    [prefix] = await target.encode([options.prefix], ["options.prefix"])
    if len(prefix) >= target.max_tokens:
        field = "options.prefix.text" if options.prefix.HasField("text") else "options.prefix.token_ids.ids"
        problem = (
            f"has {len(prefix)} tokens, which leaves no room to generate: the model writes at most {target.max_tokens}"
        )
        raise invalid(field, problem)
    return prefix


def _suppressed_tokens(reader: OptionReader, target: TargetEncoder, limits: pb.Limits) -> set[int]:
    tokens = reader.options.suppressed_tokens
    if len(tokens) > limits.suppressed_tokens:
        problem = f"has {len(tokens)} tokens, but at most {limits.suppressed_tokens} can be suppressed"
        reader.refuse("suppressed_tokens", f"{problem}; use `vocabulary` to list the allowed tokens instead")
    for index, token in enumerate(tokens):
        target.check_id(token, f"options.suppressed_tokens[{index}]")
        if token == target.end:
            problem = f"is {token}, the end token, which can't be suppressed; use min_new_tokens to delay the end"
            reader.refuse(f"suppressed_tokens[{index}]", problem)
    return set(tokens)


async def _suppressed_sequences(
    options: pb.GenerationOptions, target: TargetEncoder, limits: pb.Limits
) -> list[tuple[int, ...]]:
    sequences = options.suppressed_sequences
    if len(sequences) > limits.suppressed_sequences:
        problem = f"has {len(sequences)} sequences, but at most {limits.suppressed_sequences} can be suppressed"
        raise invalid("options.suppressed_sequences", problem)
    names = [f"options.suppressed_sequences[{index}]" for index in range(len(sequences))]
    return await target.encode(sequences, names)


def _stop_sequences(options: pb.GenerationOptions, limits: pb.Limits) -> tuple[str, ...]:
    sequences = options.stop_sequences
    if len(sequences) > limits.stop_sequences:
        problem = f"has {len(sequences)} sequences, but at most {limits.stop_sequences} are allowed"
        raise invalid("options.stop_sequences", problem)
    for index, text in enumerate(sequences):
        if not text:
            raise invalid(f"options.stop_sequences[{index}]", "is empty")
        if len(text) > limits.stop_sequence_characters:
            problem = f"has {len(text)} characters, but may have at most {limits.stop_sequence_characters}"
            raise invalid(f"options.stop_sequences[{index}]", problem)
    return tuple(sequences)


def _vocabulary(options: pb.GenerationOptions, target: TargetEncoder) -> tuple[int, ...] | None:
    """Returns the sorted ids, including the end token."""
    if not options.HasField("vocabulary"):
        return None
    ids = options.vocabulary.ids
    if len(ids) > target.vocabulary_size:
        problem = f"has {len(ids)} ids, more than the {target.vocabulary_size} of the target vocabulary"
        raise invalid("options.vocabulary.ids", problem)
    for index, token in enumerate(ids):
        field = f"options.vocabulary.ids[{index}]"
        target.check_id(token, field)
        if token in target.special and token != target.end:
            raise invalid(field, f"is {token}, the special token {target.special[token]}")
    tokens = {*ids, target.end}
    if len(tokens) == 1:
        raise invalid("options.vocabulary.ids", "has no token to choose except the end token")
    return tuple(sorted(tokens))
