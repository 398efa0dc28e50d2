"""Greedy decoding of many sources with a bundle's graphs, rows refilled as they end."""

from collections.abc import Iterator, Sequence

from tokenizers import Tokenizer

from dragoman_server.runtime.model import Runtime


def greedy(runtime: Runtime, sources: Sequence[Sequence[int]]) -> list[list[int]]:
    """Decodes all sources, as many at a time as the runtime has rows.

    Args:
        runtime: nothing of what it holds is kept.
        sources: token ids, with the end token, within the model's limit.

    Returns:
        target ids of each source, without begin and end token; cut at the model's limit.
    """
    end = runtime.manifest.tokens.end
    # Of about the same length together, so that little is padded.
    waiting = sorted(range(len(sources)), key=lambda i: len(sources[i]))
    results: list[list[int]] = [[] for _ in sources]
    running: list[int] = []  # the source that each row belongs to
    while waiting or running:
        # Encoding single newcomers is dear: let rows run empty until an eighth can be filled at once.
        free = runtime.max_rows - len(running)
        if waiting and (not running or free >= max(1, runtime.max_rows // 8)):
            joining, waiting = waiting[:free], waiting[free:]
            runtime.encode([sources[i] for i in joining], len(running))
            running += joining
        ids = runtime.top(len(running), 1).ids
        for row in reversed(range(len(running))):
            token, result = int(ids[row, 0]), results[running[row]]
            if token != end:
                result.append(token)
                runtime.tokens[row, 0] = token
                runtime.positions[row] += 1
            if token == end or len(result) == runtime.target_capacity:
                last = len(running) - 1
                if row != last:
                    runtime.move_row(last, row)
                    running[row] = running[last]
                running.pop()
    return results


def within_limit(tokenizer: Tokenizer, texts: Sequence[str], limit: int) -> Iterator[tuple[str, list[int]]]:
    """The texts that have at most `limit` tokens, with their ids."""
    for text, encoding in zip(texts, tokenizer.encode_batch(list(texts)), strict=True):
        if len(encoding.ids) <= limit:
            yield text, encoding.ids
