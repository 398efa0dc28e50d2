"""Adds a lexical shortlist to a bundle, and measures what it costs and gains."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from dragoman_export.bundle.write import file_entry, write_manifest
from dragoman_export.checks.affordable import reserved_rows
from dragoman_export.checks.offline_decoding import within_limit
from dragoman_export.checks.quality import NAMES, ComparisonSet, DecodedSet
from dragoman_export.checks.step_timing import fastest
from dragoman_export.precision.quality_loss import is_judgeable, points_lost
from dragoman_export.run_data import spread
from dragoman_export.shortlist.lists import COMMON, Statistics, make_shortlist
from dragoman_server.bundle.load import Bundle, load_bundle
from dragoman_server.bundle.manifest import SHORTLIST_VERSION, LexicalShortlist
from dragoman_server.bundle.shortlist import Shortlist
from dragoman_server.core.search import StepRequest
from dragoman_server.machine import usable_cpus
from dragoman_server.runtime.device import CPU
from dragoman_server.runtime.runtime import Runtime
from dragoman_server.runtime.sessions import Sessions
from dragoman_training.data.pairs import Pair

FILE = "shortlist.bin"
LIKELY = (50, 100)  # translations of a source token, the fewest first
MOST_LOST = 0.05  # points of any metric for a shortlist to be the default
TIMED_ROWS = (8, 32, 64)
DECISIVE_ROWS = 32  # the number of rows with which steps must be faster


@dataclass(frozen=True)
class ShortlistTask:
    """What to make a shortlist from and for.

    Attributes:
        bundle: The bundle to add it to.
        pairs: Training pairs.
        data: Data to measure on, none of which is among the pairs.
        before: The bundle's answers to the data without a shortlist.
        say: Prints a line for the user.
    """

    bundle: Bundle
    pairs: Sequence[Pair]
    data: ComparisonSet
    before: DecodedSet
    say: Callable[[str], None]


def add_shortlist(task: ShortlistTask) -> Bundle:
    """Adds the smallest shortlist that loses little, else the largest, and says in the manifest which it is."""
    bundle, say = task.bundle, task.say
    say(f"aligning {len(task.pairs):,} training pairs for a shortlist")
    statistics = Statistics(bundle, task.pairs)
    texts = list(task.before.expected)
    for likely in LIKELY:
        shortlist = make_shortlist(bundle, statistics, likely)
        after = task.data.decode(bundle, CPU, shortlist)
        points = points_lost(task.before, after)
        say(f"a shortlist of {likely} translations for each token loses {points:.3g} points on {task.data.name}")
        if points <= MOST_LOST:
            break
    sources = [ids for _, ids in within_limit(bundle, spread(texts, max(TIMED_ROWS)))]
    times = step_times(bundle, shortlist, sources)
    decisive = max((rows for rows in times if int(rows) <= DECISIVE_ROWS), key=int, default="")
    equal = sum(ids == after.ids[text] for text, ids in task.before.ids.items())
    described = LexicalShortlist(
        file=FILE,
        default=is_judgeable(task.before) and points <= MOST_LOST and times.get(decisive, 1.0) < 1,
        tokens=round(sum(len(shortlist.candidates(ids)) for ids in sources) / len(sources), 1),
        points_lost=round(points, 3) + 0.0,  # not -0
        step_time=times,
        measured={
            "data": task.data.name,
            "sources": len(task.before.ids),
            "pairs": statistics.pairs,
            "common": COMMON,
            "likely": likely,
            "equal_answers": round(equal / max(1, len(task.before.ids)), 4),
            "quality": {
                NAMES[metric]: {"without": round(value, 3), "with": round(after.scores[metric], 3)}
                for metric, value in task.before.scores.items()
            },
        },
    )
    place = bundle.path / FILE
    place.write_bytes(shortlist.to_bytes())
    files = bundle.manifest.files | {FILE: file_entry(place)}
    update = {
        "format_version": max(bundle.manifest.format_version, SHORTLIST_VERSION),
        "shortlist": described,
        "files": files,
    }
    write_manifest(bundle.manifest.model_copy(update=update), bundle.path)
    return load_bundle(bundle.path)


def step_times(bundle: Bundle, shortlist: Shortlist, sources: Sequence[Sequence[int]]) -> dict[str, float]:
    """Returns the duration of a step with a shortlist as a share of one without it, by number of rows.

    Args:
        bundle: The bundle.
        shortlist: The shortlist.
        sources: A source for each row.
    """
    most = min(len(sources), reserved_rows(bundle.manifest, max(TIMED_ROWS)))
    runtime = Runtime(Sessions(bundle, CPU, usable_cpus()), most)
    runtime.encode(sources[:most], 0)
    requests = [StepRequest(1, vocabulary=shortlist.candidates(source)) for source in sources[:most]]
    shares: dict[str, float] = {}
    for rows in (rows for rows in TIMED_ROWS if rows <= most):
        without, listed = fastest([partial(runtime.top, rows, 1), partial(runtime.step, requests[:rows])])
        shares[str(rows)] = round(listed / without, 2)
    return shares
