"""`python -m tests.benchmark.servers`: the server beside Triton and a plain asyncio server, over the same model."""

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import typer

from dragoman.local import LOOPBACK, LocalServer, ServerStartError
from dragoman_export.bundle.weights import UnreadableGraphError, load_model
from dragoman_export.errors import ExportError
from dragoman_server.bundle.load import Bundle, BundleError
from dragoman_server.machine import usable_cpus
from tests.benchmark import results
from tests.benchmark.actor import Actor, ActorError
from tests.benchmark.cli import Arithmetic, Model, bundle_of
from tests.benchmark.machine import describe
from tests.benchmark.random_bundle import BUILD
from tests.benchmark.servers.inputs import Inputs, sentence_inputs, word_inputs
from tests.benchmark.servers.load import ServerLoad
from tests.benchmark.servers.running import Running, Setting, start_asyncio
from tests.benchmark.servers.translation import SOURCE_TOKENIZER, TARGET_TOKENIZER
from tests.benchmark.servers.triton import MODEL, Triton, TritonSetupError
from tests.benchmark.serving import describe_model
from tests.benchmark.translators import COMPUTE_TYPES, KERNELS, Translators, thread_settings
from tests.support.ctranslate2_model import convert
from tests.support.load import Sample, percentile

CALLERS = (1, 2, 4, 8, 16, 32, 64, 128)
TRIED_CALLERS, TRIED_BATCHES = 64, (32, 64)
SHARE = 0.7  # of the calls a second that 64 callers get of the slowest server: the rate at which all are compared
WARM_UP_SECONDS = 0.3
OPEN_SECONDS = 4.0
PROTOCOLS = {"dragoman": "generate", "triton": "infer", "batching": "generate"}
Start = Callable[[], AbstractContextManager[Running | LocalServer]]


class Comparison:
    """The servers on one model.

    Args:
        converted: Model converted for CTranslate2, with its tokenizers.
        inputs: Inputs to send.
        seconds: Approximate length of a sample.
    """

    def __init__(self, bundle: Bundle, converted: Path, inputs: Inputs, seconds: float) -> None:
        self.bundle, self.converted, self.inputs, self.seconds = bundle, converted, inputs, seconds
        with ExitStack() as stack:
            translators = Translators(stack, converted, inputs.workload, bundle.manifest.precision, seconds)
        kernels = KERNELS[translators.kernels]
        threads = thread_settings(usable_cpus())
        self.settings = [Setting(*each, batch, kernels) for each in threads for batch in TRIED_BATCHES]

    def measure(self, names: list[str], serve: list[str], rounds: int) -> dict[str, Any]:
        """Returns by server: its setting, its results for 1 to 128 closed-loop callers, and those for random arrivals
        at a rate that is the same for all servers.
        """
        compute_type = COMPUTE_TYPES[self.bundle.manifest.precision]
        kinds: dict[str, Callable[[Setting], AbstractContextManager[Running]]] = {
            "batching": partial(start_asyncio, self.converted, compute_type)
        }
        if "triton" in names:
            kinds["triton"] = partial(Triton(BUILD / "triton").start, self.converted, compute_type)
        starts: dict[str, tuple[str, Start]] = {}
        for name in names:
            print(f"  {name}: choosing its setting", flush=True)
            if name in kinds:
                setting = max(self.settings, key=partial(self._try, name, kinds[name]))
                starts[name] = str(setting), partial(kinds[name], setting)
            else:
                arguments = ("--bundle", str(self.bundle.path), "--log-requests", "failed", *serve)
                starts[name] = "its defaults", partial(LocalServer, *arguments)
        closed: dict[str, list[list[Sample]]] = {name: [[] for _ in CALLERS] for name in starts}
        for number in range(rounds):
            for name, (_, start) in starts.items() if number % 2 == 0 else reversed(starts.items()):
                print(f"  round {number + 1}: {name}", flush=True)
                with self._load(name, start) as load:
                    for callers, samples in zip(CALLERS, closed[name], strict=True):
                        samples.append(load.call("closed", callers, self.seconds))
        at = CALLERS.index(TRIED_CALLERS)
        rate = SHARE * min(median(s.sequences / s.seconds for s in samples[at]) for samples in closed.values())
        found: dict[str, Any] = {}
        for name, (setting_name, start) in starts.items():
            print(f"  {rate:.0f} calls a second: {name}", flush=True)
            with self._load(name, start) as load:
                arrivals = load.call("open", rate, OPEN_SECONDS, 0)
            points = [{"callers": callers, **_point(s)} for callers, s in zip(CALLERS, closed[name], strict=True)]
            found[name] = {"setting": setting_name, "closed": points, "open": _point([arrivals]) | {"calls": rate}}
        return found

    def _try(self, name: str, start: Callable[[Setting], AbstractContextManager[Running]], setting: Setting) -> float:
        with self._load(name, partial(start, setting)) as load:
            sample: Sample = load.call("closed", TRIED_CALLERS, self.seconds)
        return sample.tokens / sample.seconds

    @contextmanager
    def _load(self, name: str, start: Start) -> Iterator[Actor]:
        """A load generator on a server, started and warm."""
        model = self.bundle.manifest.name if name == "dragoman" else MODEL
        inputs = self.inputs
        asked = PROTOCOLS[name], model, inputs.workload.texts, inputs.limits, self.converted / TARGET_TOKENIZER
        with start() as served:
            address = LOOPBACK, served.port
            with closing(Actor(ServerLoad, address, served.process.pid, *asked, inputs.ends)) as load:
                load.call("closed", 16, WARM_UP_SECONDS)
                yield load


def _point(samples: list[Sample]) -> dict[str, float]:
    """Medians over rounds."""
    return {
        "rate": median(sample.tokens / sample.seconds for sample in samples),
        **{f"p{round(100 * q)}": median(percentile(sample.latencies, q) for sample in samples) for q in (0.5, 0.99)},
        "failed": sum(sample.failed for sample in samples),
    }


def convert_with_tokenizers(bundle: Bundle, folder: Path) -> None:
    """A bundle as a server over CTranslate2 takes it."""
    convert(load_model(bundle), bundle.source_tokenizer, bundle.target_tokenizer, folder)
    bundle.source_tokenizer.save(str(folder / SOURCE_TOKENIZER))
    bundle.target_tokenizer.save(str(folder / TARGET_TOKENIZER))


def main(
    model: Annotated[list[Model] | None, typer.Option(help="Only this one.")] = None,
    precision: Annotated[Arithmetic, typer.Option(help="Of all models.")] = Arithmetic.int8,
    triton: Annotated[bool, typer.Option(help="Whether Triton takes part; it is installed the first time.")] = True,
    rounds: Annotated[int, typer.Option(min=1, help="Samples of each point.")] = 2,
    seconds: Annotated[float, typer.Option(min=0.05, help="Length of a sample, about.")] = 1.0,
    serve: Annotated[str, typer.Option(help="More arguments of dragoman-serve, in one string.")] = "",
    output: Annotated[Path, typer.Option(help="Folder of servers.json, to which this adds.")] = results.RESULTS,
) -> None:
    """Measures Dragoman beside Triton and a plain asyncio server that makes batches, both over CTranslate2."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # or the servers would live on
    machine, document = describe("tests.benchmark.servers"), results.read("servers", output)
    names = [name for name in PROTOCOLS if triton or name != "triton"]
    try:
        for kind in model or Model:
            label = f"{kind.value} {precision.value}"
            print(label, flush=True)
            bundle, converted = bundle_of(kind, precision), BUILD / f"ctranslate2-{kind.value}-text"
            convert_with_tokenizers(bundle, converted)
            inputs = word_inputs(bundle) if kind is Model.small else sentence_inputs(bundle)
            found = Comparison(bundle, converted, inputs, seconds).measure(names, serve.split(), rounds)
            about = {"machine": machine, "model": describe_model(bundle), "inputs": inputs.workload.title}
            document[label] = {**about, "systems": found}
            results.write("servers", document, output)
    except (ActorError, BundleError, ExportError, ServerStartError, TritonSetupError, UnreadableGraphError) as error:
        hint = "; the others can be measured without it: --no-triton" if isinstance(error, TritonSetupError) else ""
        typer.echo(f"benchmark: {error}{hint}", err=True)
        raise typer.Exit(1) from None
