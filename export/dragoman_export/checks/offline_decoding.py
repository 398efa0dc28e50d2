"""Greedy decoding of many sources with a bundle's graphs, without an engine."""

from collections.abc import Iterator, Sequence
from typing import get_args

from dragoman_server.bundle.load import Bundle
from dragoman_server.bundle.manifest import Manifest, Side, Text
from dragoman_server.bundle.segmenter import Segmenter, frame_ids
from dragoman_server.bundle.shortlist import Shortlist
from dragoman_server.decoding.greedy import GreedyRows, GreedySearch
from dragoman_server.messages.languages import NAMED
from dragoman_server.runtime.runtime import Runtime

IMPORTED_ANSWER = 64  # longest answer of an imported model in tokens, as its limit may be hundreds of times that


def decode_greedily(
    runtime: Runtime, sources: Sequence[Sequence[int]], shortlist: Shortlist | None = None
) -> list[list[int]]:
    """Decodes all sources, as many at a time as the runtime has rows; finished rows are refilled.

    Args:
        runtime: Runtime whose rows are all free.
        sources: Token ids with the end token, within the model's limit.
        shortlist: Chooses the tokens of each answer; None for all tokens.

    Returns:
        Target ids of each source without begin and end token, cut at `longest_answer`.
    """
    manifest = runtime.manifest
    end, longest, forced = manifest.tokens.end, longest_answer(manifest), forced_first(manifest)
    searches = [
        GreedySearch(end, longest, None if shortlist is None else shortlist.candidates(source)) for source in sources
    ]
    # Sources of similar length are encoded together, which saves padding.
    waiting = sorted(range(len(sources)), key=lambda i: len(sources[i]))
    running: list[int] = []  # source of each row
    rows = GreedyRows(runtime.max_rows)
    while waiting or running:
        # Encoding few sources is inefficient, so an eighth of the rows must be free.
        free = runtime.max_rows - len(running)
        if waiting and (not running or free >= max(1, runtime.max_rows // 8)):
            joining, waiting = waiting[:free], waiting[free:]
            first = len(running)
            runtime.encode([sources[i] for i in joining], first)
            for i in joining:
                rows.add(len(running), searches[i])
                running.append(i)
            if forced is not None:
                runtime.top(len(running), 1)  # for older rows a repetition, which changes nothing
                runtime.tokens[first : len(running)] = forced
                runtime.positions[first : len(running)] = 1
        used = len(running)
        positions = runtime.positions[:used]
        requests = [searches[source].step_request for source in running]
        finished = rows.advance(runtime.step(requests), positions, runtime.tokens[:used])
        positions += 1
        for row in reversed(finished):
            rows.remove(row)
            last = len(running) - 1
            if row != last:
                runtime.move_row(last, row)
                rows.move([(last, row)])
                running[row] = running[last]
            running.pop()
    answers = [search.hypotheses()[0].ids for search in searches]
    return answers if forced is None else [[forced, *ids[1:]] for ids in answers]


def longest_answer(manifest: Manifest) -> int:
    """Returns at how many tokens answers are cut in checks and measurements."""
    limit = manifest.limits.max_target_tokens
    return limit if manifest.generation is None else min(limit, IMPORTED_ANSWER)


def forced_first(manifest: Manifest) -> int | None:
    """Returns the first token of all answers, or None if it is free."""
    rules = manifest.text
    if rules is not None and rules.forces_language:
        return rules.languages[_language(rules, "target")].target
    return None if manifest.generation is None else manifest.generation.forced_first


def within_limit(bundle: Bundle, texts: Sequence[str]) -> Iterator[tuple[str, list[int]]]:
    """Yields the texts that are within the model's limit, with their ids."""
    for text, ids in zip(texts, encode_sources(bundle, texts), strict=True):
        if len(ids) <= bundle.manifest.limits.max_source_tokens:
            yield text, ids


def encode_sources(bundle: Bundle, texts: Sequence[str]) -> list[list[int]]:
    """Returns the source ids of texts, in the default languages of a model that has languages.

    A text that starts with the token of a language is in that language.
    """
    rules = bundle.manifest.text
    if rules is None:
        return [encoding.ids for encoding in bundle.source_tokenizer.encode_batch(list(texts))]
    languages = {side: _language(rules, side) for side in get_args(Side)} if rules.languages else {}
    prefix = rules.prefix.replace("{target_language}", languages.get("target", ""))
    segmenter = Segmenter(bundle.source_tokenizer, bundle.source_pieces, bundle.manifest.tokens.unknown)
    before, after = (frame_ids(rules, parts, languages) for parts in (rules.before, rules.after))
    named = "<2{target_language}>" in rules.prefix
    complete = [text if named and _names_language(rules, text) else prefix + text for text in texts]
    return [[*before, *ids, *after] for ids in segmenter.ids(complete)]


def encode_targets(bundle: Bundle, texts: Sequence[str]) -> list[list[int]]:
    """Returns the target ids of texts; for an imported model, without the ids that frame a target."""
    if bundle.manifest.text is None:
        return [encoding.ids for encoding in bundle.target_tokenizer.encode_batch(list(texts))]
    return Segmenter(bundle.target_tokenizer, bundle.target_pieces, bundle.manifest.tokens.unknown).ids(texts)


def _names_language(rules: Text, text: str) -> bool:
    match = NAMED.match(text)
    return match is not None and (match[1] or match[2]) in rules.languages


def _language(rules: Text, side: Side) -> str:
    """Returns the default language of a side; without one, any."""
    return (rules.source_language if side == "source" else rules.target_language) or next(iter(rules.languages))
