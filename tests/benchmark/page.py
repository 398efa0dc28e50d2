"""`python -m tests.benchmark.page`: writes all results as one page with pictures, from the JSON files."""

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import typer

from tests.benchmark.marks import LABELS, MARKS, Measured
from tests.benchmark.pictures import draw
from tests.benchmark.results import RESULTS, Imported, Row, read
from tests.benchmark.tables import measured_on, table

PAGE = Path(__file__).parent / "README.md"
SERVERS = {"dragoman": "Dragoman", "triton": "Triton", "batching": "asyncio, batching"}
SHOWN_CALLERS = (1, 8, 64)
BULK_MARK = 1.0  # times CTranslate2's rate, at least
TRAINING_MARK, HEALTH_MARK = 1.5, 0.05  # times the better of the others, at least; seconds of the p99, at most
NAMES = {
    "raw": "step loop, rows: {}",
    "unary": "served, `Generate` calls: {}",
    "many": "served, items in flight in one `GenerateMany` call: {}",
    "batch": "served, one `GenerateBatch` of {}",
    "ctranslate2": "CTranslate2, inputs: {}",
}
"""Column titles of systems by batch size."""

HEAD = """# What was measured

Written by `python -m tests.benchmark.page` from the JSON files in [`results/`](results), each of which holds the latest
run of one benchmark. Nothing here is typed by hand.

```sh
make bench                            # the server, its step loop, CTranslate2 and transformers: a quarter of an hour
python -m tests.benchmark.imports     # imported models, CTranslate2 and transformers; also in make bench
make bench-servers                    # the server, Triton and a plain asyncio server: ten minutes
python -m tests.benchmark.bulk        # `dragoman bulk` and CTranslate2 on whole files: half an hour
python -m tests.benchmark.profile     # what the threads of a busy server do; needs py-spy
python -m tests.benchmark.health      # how fast a busy server answers health checks
python -m tests.benchmark.growth      # how time grows with rows, lengths and vocabulary
python -m tests.benchmark.positions   # what relative positions cost in a step
python -m tests.benchmark.training    # training, compared with nn.Transformer and Marian
python -m tests.benchmark.training.scaling    # training in one process and in one per core
python -m tests.benchmark.gpu         # steps on a GPU
```

**g2p-en** is the shipped small model (d 256, 4+2 layers, V 43), given real words; **base** has the shape of
"Attention Is All You Need" (d 512, 6+6 layers, V 32,000) and random weights. The *step loop* runs the bundle's graphs
step by step, without serving anyone. CTranslate2 runs in-process with the same weights in the same precision, its
fastest kernels and its best thread setting, on inputs tokenized beforehand. Tokens are generated tokens, the end token
included. All systems take turns, round after round, each in its own process; ratios are taken within a round. The load
generator shares the cores with the server. A benchmark that runs as root compacts the machine's memory first: scattered
pages made whatever started first a quarter slower."""
SERVING = """Of {} goals that were set and measured, {} are met (✓), the others missed (✗). A number without either
has no goal; – means not measured."""
SAME = """Answers with the same tokens as CTranslate2's: {}. Where two tokens are almost equally likely, rounding
decides; with random weights in int8, that happens soon."""
IMPORTS = """Hugging Face models, imported with `--from-transformers`: the shapes of opus-mt (d 512, 6+6 layers,
V 58,101) and t5-small (d 512, 6+6 layers, V 32,128) with random weights; all answers have 32 tokens. CTranslate2
converts the same directory; *transformers* is its own `generate` on all cores in fp32, with padded batches. The table
shows the server's tokens a second, and the median over rounds of its ratio to the others'."""
IMPORT_LOADS = (
    ("one call at a time", "unary", 1, False),
    ("8 calls", "unary", 8, False),
    ("64 calls", "unary", 64, False),
    ("a call of 64", "batch", 64, False),
    ("a call of 8, beam of 4", "batch", 8, True),
)
"""Title, system, load, and whether it is beam search."""
BESIDE = """The same texts over gRPC, from the same load generator; all servers tokenize, generate greedily and join the
text. Triton runs CTranslate2 in its Python backend with dynamic batching; the asyncio server batches what arrived while
the last batch ran; each uses the setting with the most tokens for 64 callers. A caller waits for each answer before the
next call, except with random arrivals."""
BULK = """`dragoman bulk --bundle` from a file of texts to a file of answers: reading, tokenizing, decoding, joining
tokens and saving, with default options except for the length limit and the beam. CTranslate2 gets the texts tokenized,
returns tokens, and reads and writes nothing: one `translate_batch` over all of them, with its best threads and batches.
Target tokens a second (lowest–highest of the rounds), and core time for each text, bulk / CTranslate2. The goal is at
least {:.1f} times CTranslate2's rate: ✓ or ✗."""
LOOP = """One engine with one thread runs g2p-en in int8 with all rows always in use; microseconds per turn. *Rest*
is what is not spent in ONNX Runtime: scheduler, searches, moving rows, metrics; *steady rest* is that of a turn in
which no request starts or ends."""
PROFILE = """The threads of a server of g2p-en in int8 with in-process engines, sampled by py-spy while its cores were
full. *Graphs*, *Python* and *rest* are shares of the engine threads' time: in ONNX Runtime, in Python or waiting for
the interpreter's lock, and without work. *Lock* is the share of time in which a thread of this kind holds it; at most
one does."""
PACKAGES_HELD = """Microseconds for which the lock is held for each item, by the package whose function is at work. gRPC
and the event loop have no function of ours on top; a server cannot do without them. Free-threaded Python has to
wait for grpcio, in November 2026 the only dependency without a wheel for 3.14t; protobuf's compiled part is not built
for it either."""
HEALTH = """Milliseconds until a health check is answered, p50 / p99, with this many calls of `Generate` in flight;
each kind is checked every 50 ms. `--health-port` and `--port` are `grpc.health.v1.Health/Check`; `/livez` and `/readyz`
are HTTP, with a connection per check; *echo* sends a byte to an otherwise idle process and back, which shows the delay
of this machine's scheduler. The goal for `--health-port`, `/livez` and `/readyz`, which have threads of their own, is a
p99 of at most {:.0f} ms: ✓ or ✗."""
GROWTH = """In int8 on one thread; 8 rows, 16 source tokens and 16 target tokens, except for the one that grows. An
exponent e means that time grows as size^e from the first size to the last; 1 is linear."""
POSITIONS = """Milliseconds of a decode step at position {} on one thread, at the size of t5-small (d 512, 6+6 layers,
V 32,000), by kind of positions, and what relative ones cost over sinusoidal ones. T5 has one table for all layers, umT5
one per layer. The goal is at most 10 % for T5's."""
TRAINING = f"""A step consists of batching, forward, backward, clipping and AdamW. All trainers get the same batches,
shapes, optimizer, label smoothing, dropout and threads; for nn.Transformer and Marian, the faster of PyTorch's two ways
to compute attention counts. The goal is at least {TRAINING_MARK} times the better of the two. Memory is what a process
took beyond its imports and data."""
SCALING = """The small model in fp32, {} batches per step, one thread per process, started by `torchrun`; gradients
travel over Gloo. Efficiency is the gain over one process, divided by the number of processes.
[On paper](../../docs/scale.md#training-on-8-gpus-and-on-8-nodes): what to expect of 8 GPUs and of 8 nodes."""
GPU = """{}, {}, random weights; milliseconds per step. The floor is the time to read weights and valid cache at the
bandwidth of a copy ({:,.0f} GB/s); launch gaps are the share of a step in which the device waits for the host;
CTranslate2's time is that of its whole translation, divided by the number of steps."""


def main(
    results: Annotated[Path, typer.Option(help="Folder of the JSON files.")] = RESULTS,
    page: Annotated[Path, typer.Option(help="The page to write; pictures go into a folder beside it.")] = PAGE,
) -> None:
    """Writes the page and its pictures."""
    drawn = draw(results, page.parent / "pictures")
    parts = [HEAD]
    for title, name, section in (
        ("Serving", "serving", _serving),
        ("Imported models", "imports", _imports),
        ("Beside other servers", "servers", _servers),
        ("Whole files", "bulk", _bulk),
        ("The loop around the graphs", "loop", _loop),
        ("Threads and the interpreter's lock", "profile", _profile),
        ("Health checks of a busy server", "health", _health),
        ("How time grows", "growth", _growth),
        ("Relative positions", "positions", _positions),
        ("Training", "training", _training),
        ("Training in several processes", "scaling", _scaling),
        ("On a GPU", "gpu", gpu_section),
    ):
        document = read(name, results)
        parts += [f"## {title}", *(section(document, Measured.of(results)) if document else ["Not measured yet."])]
        if name in drawn:
            parts.append(f"![{title}](pictures/{name}.png)")
    page.write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    typer.echo(f"Written to {page}.")


def _serving(document: dict[str, Any], measured: Measured) -> Iterator[str]:
    marks = [mark.reached(measured, label) for mark in MARKS for label in LABELS]
    yield SERVING.format(len(marks) - marks.count(None), marks.count(True))
    yield marks_table(measured)
    yield "Tokens a second, each system in its best setting (lowest–highest of the rounds):"
    yield table(["", *LABELS], list(_rates(measured)))
    same = [f"{label} {each.same_answers[0]:,} of {each.same_answers[1]:,}" for label, each in measured.served.items()]
    yield SAME.format(", ".join(same))
    yield "\n".join(_machines(document))


def marks_table(measured: Measured) -> str:
    """Returns the table of all serving marks."""
    rows = [[mark.name, mark.goal(), *(mark.cell(measured, label) for label in LABELS)] for mark in MARKS]
    return table(["", "goal", *LABELS], rows)


def _rates(measured: Measured) -> Iterator[list[str]]:
    for beam in (False, True):
        found = {
            label: {(row.system, row.load): row for row in (served.beam if beam else served.greedy)}
            for label, served in measured.served.items()
        }
        for system, name in NAMES.items():
            loads = {load for rows in found.values() for each, load in rows if each == system}
            for load in sorted(loads, key=lambda load: load or math.inf):
                cells = [_rate(found.get(label, {}).get((system, load))) for label in LABELS]
                yield [("beam of 4, " if beam else "") + name.format(load or "all, sorted"), *cells]


def _rate(row: Row | None) -> str:
    return f"{row.rate:,.0f} ({_span(row.rates)})" if row else "–"


def _span(rates: Sequence[float]) -> str:
    return f"{min(rates):,.0f}–{max(rates):,.0f}"


def _imports(document: dict[str, Any], measured: Measured) -> Iterator[str]:
    yield IMPORTS
    found = measured.imports
    yield imports_table(found)
    peaks = [f"{label} {_megabytes(each)}" for label, each in found.items()]
    yield f"Most memory held, MB, server / CTranslate2 / transformers: {'; '.join(peaks)}."
    same = [
        f"{label} {each.same_answers['CTranslate2']:,} and {each.same_answers['transformers']:,} of {each.answers:,}"
        for label, each in found.items()
    ]
    yield f"Answers with the same tokens as CTranslate2's and transformers': {', '.join(same)}."
    yield "\n".join(_machines(document))


def imports_table(found: Mapping[str, Imported]) -> str:
    """Returns the table of imported models."""
    rows = []
    for label, each in found.items():
        for title, system, load, beam in IMPORT_LOADS:
            row = each.at(system, load, beam=beam)
            others = [each.at(other, load, beam=beam) for other in ("ctranslate2", "transformers")]
            if row is not None:
                rows.append([label, title, _rate(row), *(_ratio(row, other) for other in others)])
    return table(["", "", "tokens/s", "over CTranslate2's", "over transformers'"], rows)


def _ratio(row: Row, other: Row | None) -> str:
    return "–" if other is None else f"{median(a / b for a, b in zip(row.rates, other.rates, strict=True)):.2f}×"


def _megabytes(imported: Imported) -> str:
    return " / ".join(f"{imported.peak_mb[name]:,.0f}" for name in ("server", "CTranslate2", "transformers"))


def _servers(document: dict[str, Any], _: Measured) -> Iterator[str]:
    yield BESIDE
    rows = []
    for label, found in document.items():
        for system, each in found["systems"].items():
            points = {point["callers"]: point for point in each["closed"]}
            rates = [f"{points[n]['rate']:,.0f}" for n in SHOWN_CALLERS]
            tails = " / ".join(_ms(points[n]["p99"]) for n in SHOWN_CALLERS)
            arrivals = each["open"]
            at_random = f"{arrivals['calls']:,.0f}/s: {_ms(arrivals['p50'])} / {_ms(arrivals['p99'])}"
            rows.append([label, SERVERS[system], *rates, tails, at_random, each["setting"]])
    callers = " / ".join(map(str, SHOWN_CALLERS))
    rates = [f"tokens/s, {n} caller{'s' * (n > 1)}" for n in SHOWN_CALLERS]
    yield table(["", "", *rates, f"p99 ms, {callers}", "random arrivals: p50 / p99 ms", "setting"], rows)
    yield "\n".join(_machines(document))


def _bulk(document: dict[str, Any], _: Measured) -> Iterator[str]:
    yield BULK.format(BULK_MARK)
    rows = []
    for label, found in document.items():
        ours, theirs = found["bulk"], found["ctranslate2"]
        ratio = median(a / b for a, b in zip(ours["rates"], theirs["rates"], strict=True))
        sign = "✓" if ratio >= BULK_MARK else "✗"
        speeds = [f"{median(each['rates']):,.0f} ({_span(each['rates'])})" for each in (ours, theirs)]
        cores = " / ".join(f"{each['core_ms']:.2f}" for each in (ours, theirs))
        texts = f"{found['texts']:,} {found['inputs']}"
        rows.append([label, texts, *speeds, f"{ratio:.2f}× {sign}", cores, theirs["setting"]])
    head = ["", "texts", "bulk", "CTranslate2", "bulk over CTranslate2", "core ms a text", "CTranslate2's setting"]
    yield table(head, rows)
    yield "\n".join(_machines(document))


def _loop(document: dict[str, Any], _: Measured) -> Iterator[str]:
    yield LOOP
    rows = []
    for turn in document["turns"]:
        micro = [1e6 * turn[part] for part in ("decoder", "encoder", "rest")]
        steady = "–" if turn["steady"] is None else f"{1e6 * turn['steady']:.0f}"
        per_row = f"{micro[2] / turn['rows']:.1f}"
        rows.append([str(turn["rows"]), *(f"{x:,.0f}" for x in micro), f"{turn['share']:.1%}", per_row, steady])
    yield table(["rows", "decoder", "encoder", "rest", "of the turn", "rest for each row", "steady rest"], rows)
    yield measured_on(document["machine"])


def _profile(document: dict[str, Any], _: Measured) -> Iterator[str]:
    loads = document["loads"]
    yield PROFILE
    shares = [("graphs", "engines"), ("python", "engines"), ("rest", "engines")]
    shares += [(kind, "lock") for kind in ("engines", "event loop", "others")]
    titles = [
        "engines: graphs",
        "engines: Python",
        "engines: rest",
        "lock: engines",
        "lock: event loop",
        "lock: others",
    ]
    rows = [
        [title, *(f"{100 * load[part].get(name, 0.0):.0f}%" for load in loads)]
        for title, (name, part) in zip(titles, shares, strict=True)
    ]
    items = ["items a second", *(f"{load['items_per_second']:,.0f}" for load in loads)]
    yield table(["", *(load["load"] for load in loads)], [items, *rows])
    yield PACKAGES_HELD
    packages = dict.fromkeys(name for load in loads for name in load["microseconds"])
    held = [[name, *(f"{load['microseconds'].get(name, 0.0):.0f}" for load in loads)] for name in packages]
    total = ["all", *(f"{sum(load['microseconds'].values()):.0f}" for load in loads)]
    yield table(["package", *(load["load"] for load in loads)], [*held, total])
    yield measured_on(document["machine"])


def _health(document: dict[str, Any], _: Measured) -> Iterator[str]:
    yield HEALTH.format(1000 * HEALTH_MARK)
    rows, kinds = [], list(document["asked"][0]["seconds"])
    for each in document["asked"]:
        cells = [f"{_ms(p50)} / {_ms(p99)}" for p50, p99, _ in each["seconds"].values()]
        worst = max(each["seconds"][kind][1] for kind in ("--health-port", "/livez", "/readyz"))
        where = f"{each['workers']} workers" if each["workers"] else "the server"
        rows.append([where, f"{each['in_flight']:,}", *cells, "✓" if worst <= HEALTH_MARK else "✗"])
    yield table(["computes", "calls in flight", *(f"`{kind}`" for kind in kinds), ""], rows)
    yield measured_on(document["machine"])


def _growth(document: dict[str, Any], _: Measured) -> Iterator[str]:
    yield GROWTH
    rows = []
    for model, curves in document["models"].items():
        for curve in curves:
            (first, *_, last), (low, *_, high) = curve["sizes"], curve["ms"]
            exponent = math.log(high / low) / math.log(last / first)
            ends = [f"{low:.3g}–{high:.3g}", f"{high / low:.1f}", f"{exponent:.2f}"]
            rows.append([model, curve["work"], curve["over"], f"{first:,}–{last:,}", *ends])
    yield table(["", "time of", "over", "from–to", "ms", "times as long", "exponent"], rows)
    yield measured_on(document["machine"])


def _positions(document: dict[str, Any], _: Measured) -> Iterator[str]:
    yield POSITIONS.format(document["position"])
    rows = []
    for step in document["steps"]:
        plain, *relative = step["ms"].values()
        costs = [f"{ms:.2f} ({ms / plain - 1:+.1%})" for ms in relative]
        rows.append([f"{step['precision']}, rows: {step['rows']}", f"{plain:.2f}", *costs])
    yield table(["", "sinusoidal", "one table", "a table per layer"], rows)
    yield measured_on(document["machine"])


def _training(document: dict[str, Any], _: Measured) -> Iterator[str]:
    yield TRAINING
    others, rows = ("nn.Transformer", "Marian"), []
    for title, found in document.items():
        ours = next(each for each in found["series"] if each["trainer"] == "dragoman")
        ratios, peaks = [], [f"{ours['peak_mb']:,.0f}"]
        for other in others:
            ways = [each for each in found["series"] if each["trainer"] == other]
            best = max(ways, key=lambda each: median(each["rates"]))
            ratios.append(median(a / b for a, b in zip(ours["rates"], best["rates"], strict=True)))
            peaks.append(f"{best['peak_mb']:,.0f}")
        sign = "✓" if min(ratios) >= TRAINING_MARK else "✗"
        speed = [f"{median(ours['rates']):,.0f}", *(f"{ratio:.2f}×" for ratio in ratios)]
        rows.append([title, *speed, sign, " / ".join(peaks)])
    yield table(
        ["", "tokens/s", *(f"over {other}'s" for other in others), "", f"MB: ours / {' / '.join(others)}"], rows
    )
    yield "\n".join(_machines(document))


def _scaling(document: dict[str, Any], _: Measured) -> Iterator[str]:
    yield SCALING.format(document["batches"])
    (alone, *_), rows = document["series"], []
    for each in document["series"]:
        gain = median(a / b for a, b in zip(each["rates"], alone["rates"], strict=True))
        count = each["processes"]
        rows.append([str(count), f"{median(each['rates']):,.0f}", f"{gain:.2f}×", f"{gain / count:.0%}"])
    yield table(["processes", "target tokens/s", "over one's", "efficiency"], rows)
    yield measured_on(document["machine"])


def gpu_section(document: dict[str, Any], _: Measured | None = None) -> Iterator[str]:
    """Returns the section on GPUs."""
    yield GPU.format(document["device"], document["precision"], document["bandwidth"] / 1e9)
    rows = []
    for step in document["steps"]:
        gaps = "–" if step["busy"] is None else f"{max(0.0, 1 - step['busy'] / step['seconds']):.0%}"
        over = f"{step['seconds'] / step['floor']:.1f}×"
        others = [_ms(other["seconds"].get(str(step["rows"]))) for other in document["others"]]
        rows.append([str(step["rows"]), _ms(step["seconds"]), over, _ms(step["unrecorded"]), gaps, *others])
    names = [other["name"] for other in document["others"]]
    yield table(["rows", "step", "over the floor", "not recorded", "launch gaps", *names], rows)
    yield from (f"{o['name']} did not run to the end: {o['problem']}" for o in document["others"] if o["problem"])
    used = [f"{used / 2**20:,.0f} MiB after {answered:,}" for answered, used in document["memory"]]
    yield f"Memory in use over requests of all kinds: {used[0]}, {used[-1]}."
    yield measured_on(document["machine"])


def _machines(document: Mapping[str, Any]) -> list[str]:
    """Returns the machine of each section, grouped by run."""
    labels: dict[str, list[str]] = {}
    for label, found in document.items():
        labels.setdefault(measured_on(found["machine"]), []).append(label)
    return [f"- {', '.join(of)}: {line[0].lower()}{line[1:]}" for line, of in labels.items()]


def _ms(seconds: float | None) -> str:
    return "–" if seconds is None else f"{1000 * seconds:.3g}" if seconds < 1 else f"{1000 * seconds:,.0f}"


if __name__ == "__main__":
    typer.run(main)
