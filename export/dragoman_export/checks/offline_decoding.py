"""Greedy decoding of many sources with a bundle's graphs, without an engine."""

from collections.abc import Iterator, Sequence

from sentencepiece import SentencePieceProcessor

from dragoman_server.bundle.load import Bundle
from dragoman_server.bundle.manifest import SourcePart, Text
from dragoman_server.decoding.greedy import GreedyRows, GreedySearch
from dragoman_server.runtime.runtime import Runtime


def decode_greedily(runtime: Runtime, sources: Sequence[Sequence[int]]) -> list[list[int]]:
    """Decodes all sources, as many at a time as the runtime has rows; finished rows are refilled.

    Args:
        runtime: Runtime whose rows are all free.
        sources: Token ids with the end token, within the model's limit.

    Returns:
        Target ids of each source without begin and end token, cut at the model's limit.
    """
    end = runtime.manifest.tokens.end
    searches = [GreedySearch(end, runtime.target_capacity) for _ in sources]
    # Sources of similar length are encoded together, which saves padding.
    waiting = sorted(range(len(sources)), key=lambda i: len(sources[i]))
    running: list[int] = []  # source of each row
    rows = GreedyRows(runtime.max_rows)
    while waiting or running:
        # Encoding few sources is inefficient, so an eighth of the rows must be free.
        free = runtime.max_rows - len(running)
        if waiting and (not running or free >= max(1, runtime.max_rows // 8)):
            joining, waiting = waiting[:free], waiting[free:]
            runtime.encode([sources[i] for i in joining], len(running))
            for i in joining:
                rows.add(len(running), searches[i])
                running.append(i)
        used = len(running)
        positions = runtime.positions[:used]
        finished = rows.advance(runtime.top(used, 1), positions, runtime.tokens[:used])
        positions += 1
        for row in reversed(finished):
            rows.remove(row)
            last = len(running) - 1
            if row != last:
                runtime.move_row(last, row)
                rows.move([(last, row)])
                running[row] = running[last]
            running.pop()
    return [search.hypotheses()[0].ids for search in searches]


def within_limit(bundle: Bundle, texts: Sequence[str]) -> Iterator[tuple[str, list[int]]]:
    """Yields the texts that are within the model's limit, with their ids."""
    for text, ids in zip(texts, encode_sources(bundle, texts), strict=True):
        if len(ids) <= bundle.manifest.limits.max_source_tokens:
            yield text, ids


def encode_sources(bundle: Bundle, texts: Sequence[str]) -> list[list[int]]:
    """Returns the source ids of texts, in the default languages of a model that has languages."""
    rules, pieces = bundle.manifest.text, bundle.manifest.tokenizers.source_pieces
    if pieces:
        processor, vocabulary = SentencePieceProcessor(str(bundle.path / pieces)), bundle.source_tokenizer.get_vocab()
        unknown = bundle.manifest.tokens.unknown
        bare = [
            [vocabulary.get(piece, unknown) for piece in found] for found in processor.encode(list(texts), out_type=str)
        ]
    else:
        bare = [encoding.ids for encoding in bundle.source_tokenizer.encode_batch(list(texts))]
    if rules is None:
        return bare
    before, after = (_with_languages(rules, parts) for parts in (rules.before, rules.after))
    return [[*before, *ids, *after] for ids in bare]


def _with_languages(rules: Text, parts: Sequence[SourcePart]) -> list[int]:
    ids = []
    for part in parts:
        if isinstance(part, int):
            ids.append(part)
            continue
        code = getattr(rules, part) or next(iter(rules.languages))
        token = rules.languages[code].source
        assert token is not None
        ids.append(token)
    return ids
