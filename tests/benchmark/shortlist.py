"""What a lexical shortlist gains: tokens a second served with and without, for sentences of Tatoeba.

    python -m tests.benchmark.shortlist [--precision int8] [--likely 50] [--shortest 16] [--rounds 5] [--seconds 4]

The model has the base shape and random weights. Its tokens stand for those of a joint BPE of 32,000 tokens that is
trained on the sentences, so sources and shortlists have real lengths; an answer is as long as the real translation.
"""

import argparse
import gzip
import json
import math
import random
import shutil
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing
from itertools import cycle
from pathlib import Path
from statistics import median

from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from dragoman.local import LOOPBACK, LocalServer
from dragoman.v1 import generation_pb2 as pb
from dragoman_export.bundle.write import file_entry, write_manifest
from dragoman_export.shortlist.lists import Statistics, make_shortlist
from dragoman_export.shortlist.measure import FILE
from dragoman_server.bundle.load import Bundle, load_bundle
from dragoman_server.bundle.manifest import SHORTLIST_VERSION, LexicalShortlist
from dragoman_server.bundle.shortlist import Shortlist
from dragoman_server.core.search import StepRequest
from dragoman_server.runtime.device import CPU
from dragoman_server.runtime.runtime import Runtime
from dragoman_server.runtime.sessions import Sessions
from dragoman_training.data.pairs import Pair
from dragoman_training.data.tokenizers import SPECIAL_TOKENS
from tests.benchmark.actor import Actor
from tests.benchmark.random_bundle import BASE, ROOT, VOCABULARY, random_bundle
from tests.support.load import LoadGenerator, Sample
from tests.support.random_model import symbol

CORPUS = ROOT.parent / "shared" / "data" / "tatoeba-de-en" / "deu.txt.gz"
LONGEST = 60  # tokens, below the model's limit
ALIGNED, SENT = 100_000, 2000  # pairs
LOADS = (8, 64)


def symbol_pairs() -> list[tuple[list[str], list[str]]]:
    """Returns sentence pairs, German first, in a random order, each text as the symbols that stand for its tokens."""
    with gzip.open(CORPUS, "rt", encoding="utf-8") as file:
        lines = [line.split("\t")[:2] for line in file]
    random.Random(1).shuffle(lines)
    tokenizer = Tokenizer(models.BPE(unk_token=SPECIAL_TOKENS[1]))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.BpeTrainer(vocab_size=VOCABULARY, special_tokens=list(SPECIAL_TOKENS), show_progress=False)
    tokenizer.train_from_iterator([text for line in lines for text in line], trainer)
    english, german = (tokenizer.encode_batch(list(side)) for side in zip(*lines[: ALIGNED + SENT], strict=True))
    pairs = zip(german, english, strict=True)
    return [
        ([symbol(token) for token in source.ids], [symbol(token) for token in target.ids])
        for source, target in pairs
        if len(source.ids) < LONGEST and len(target.ids) < LONGEST
    ]


def listed(bundle: Bundle, pairs: Sequence[tuple[list[str], list[str]]], likely: int, folder: Path) -> Bundle:
    """Returns a copy of a bundle, with a shortlist that is the default."""
    shutil.copytree(bundle.path, folder)
    aligned = [Pair(" ".join(source), " ".join(target), CORPUS, 1) for source, target in pairs]
    (folder / FILE).write_bytes(make_shortlist(bundle, Statistics(bundle, aligned), likely).to_bytes())
    update = {
        "format_version": SHORTLIST_VERSION,
        "shortlist": LexicalShortlist(file=FILE, default=True, tokens=0),
        "files": bundle.manifest.files | {FILE: file_entry(folder / FILE)},
    }
    write_manifest(bundle.manifest.model_copy(update=update), folder)
    return load_bundle(folder)


def step_times(bundle: Bundle, shortlist: Shortlist, sources: Sequence[Sequence[int]]) -> dict[int, list[float]]:
    """Returns the processor time of a step in milliseconds without and with the shortlist, and the ratio, by rows.

    One thread steps rows in the middle of their answers; one in ten is replaced after each step. The least of many.
    """
    found = {}
    for rows in (1, 8, 32, 64):
        runtime = Runtime(Sessions(bundle, CPU, 1), rows)
        runtime.encode(sources[:rows], 0)
        runtime.positions[:] = 10
        waiting = cycle(shortlist.candidates(source) for source in sources)
        step_requests = [StepRequest(1, vocabulary=next(waiting)) for _ in range(rows)]
        least = [math.inf, math.inf]
        for turn in range(60):
            for place in range(turn, turn + max(1, rows // 10)):
                step_requests[place % rows] = StepRequest(1, vocabulary=next(waiting))
            for use in (0, 1):
                start = time.thread_time()
                runtime.step(step_requests) if use else runtime.top(rows, 1)
                least[use] = min(least[use], 1000 * (time.thread_time() - start))
        found[rows] = [round(least[0], 2), round(least[1], 2), round(least[0] / least[1], 2)]
    return found


def requests(pairs: Sequence[tuple[list[str], list[str]]], *, use: bool) -> list[bytes]:
    """Returns serialized requests whose answers are as long as the translations."""
    return [
        pb.GenerateRequest(
            input=pb.Input(text=" ".join(source)),
            options=pb.GenerationOptions(max_new_tokens=len(target) + 1, use_shortlist=use),
        ).SerializeToString()
        for source, target in pairs
    ]


def described(rounds: Sequence[Sequence[Sample]]) -> str:
    """Compares samples without and with the shortlist, a pair for each round.

    Where other programs take the cores, processor time says more than tokens a second.
    """
    rates = [[sample.tokens / sample.seconds for sample in samples] for samples in rounds]
    costs = [[1e6 * sample.cpu_seconds["server"] / sample.tokens for sample in samples] for samples in rounds]
    ratios = [with_ / without for without, with_ in rates]
    savings = [without / with_ for without, with_ in costs]
    without, with_ = (median(values) for values in zip(*rates, strict=True))
    before, after = (median(values) for values in zip(*costs, strict=True))
    return (
        f"{without:,.0f} tokens/s without, {with_:,.0f} with: {median(ratios):.2f} "
        f"({min(ratios):.2f}-{max(ratios):.2f}); processor time of a token {before:,.0f} us, {after:,.0f} us: "
        f"{median(savings):.2f} ({min(savings):.2f}-{max(savings):.2f})"
    )


def main() -> None:
    """Prints tokens a second."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--precision", default="int8")
    parser.add_argument("--likely", type=int, default=50)
    parser.add_argument("--shortest", type=int, default=0, help="fewest target tokens of the sentences that are sent")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps-only", action="store_true", help="serve nobody")
    parser.add_argument("--seconds", type=float, default=4)
    arguments = parser.parse_args()
    pairs = symbol_pairs()
    sent = [pair for pair in pairs if len(pair[1]) >= arguments.shortest][:SENT]
    held_out = {" ".join(source) for source, _ in sent}
    pairs = [pair for pair in pairs if " ".join(pair[0]) not in held_out]
    with tempfile.TemporaryDirectory() as scratch:
        exact = random_bundle("base", BASE, VOCABULARY, arguments.precision)
        bundle = listed(exact, pairs, arguments.likely, Path(scratch) / "listed")
        shortlist = bundle.shortlist
        assert shortlist is not None
        sources = [bundle.source_tokenizer.encode(" ".join(source)).ids for source, _ in sent]
        sizes = [len(shortlist.candidates(source)) for source in sources]
        unions = [
            len(set().union(*(shortlist.candidates(source) for source in sources[start : start + 32])))
            for start in range(0, len(sent) - 31, 32)
        ]
        result = {
            "tokens of a source": round(sum(map(len, sources)) / len(sent), 1),
            "tokens of its shortlist": round(sum(sizes) / len(sent)),
            "of 32 together": round(sum(unions) / len(unions)),
            "step time by rows": step_times(bundle, shortlist, sources),
        }
        print(json.dumps(result), flush=True)
        if arguments.steps_only:
            return
        with LocalServer("--bundle", str(bundle.path), log=Path(scratch) / "log") as server:
            place = (LOOPBACK, server.port), server.process.pid, "Generate"
            generators = [Actor(LoadGenerator, *place, requests(sent, use=use)) for use in (False, True)]
            with closing(generators[0]), closing(generators[1]):
                for load in LOADS:
                    samples: list[list[Sample]] = []
                    for number in range(arguments.rounds):
                        order = (0, 1) if number % 2 == 0 else (1, 0)
                        found = {use: generators[use].call("closed", load, arguments.seconds) for use in order}
                        samples.append([found[0], found[1]])
                    print(f"{load} calls: {described(samples)}", flush=True)


if __name__ == "__main__":
    main()
