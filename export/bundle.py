"""Makes a bundle of a run: all of it and checked, or nothing."""

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import onnx

from export.check import Report, check_bundle
from export.errors import ExportError
from export.graphs import DecoderStep, Scorer, SourceEncoder, folded
from export.graphs.interface import DTYPES, Interface, decoder_interface, encoder_interface, scorer_interface
from export.onnx_files import operators, save, trace
from export.quality import measure
from server.bundle.load import load_bundle
from server.bundle.manifest import (
    MANIFEST_FILE,
    Attention,
    File,
    Graph,
    Graphs,
    Limits,
    Manifest,
    Precision,
    Shape,
    SpecialTokens,
    Tokenizers,
)
from server.runtime.device import DeviceChoice, choose_device
from training.data.corpus import BadLines, Pair
from training.data.prepare import read_splits
from training.data.tokenizers import BEGIN_ID, END_ID, PAD_ID, UNKNOWN_ID
from training.errors import TrainingError
from training.run import Run, load_run

ENCODER, DECODER, SCORER = "encoder.onnx", "decoder.onnx", "scorer.onnx"
GREEDY_SOURCES = 256  # of dev, decoded by model and graphs
EXAMPLES = 6


@dataclass(frozen=True)
class Options:
    """What can be chosen of a bundle.

    Attributes:
        attention: `ort` runs on ONNX Runtime alone, and faster; `standard` has nothing but standard ONNX.
        notices: files to put into the bundle beside the model: licences, attributions.
        examples: inputs the model is meant for; by default some sources of dev.
        overwrite: whether an existing bundle may be replaced.
        device: to check the graphs on.
    """

    name: str
    version: str = "1"
    description: str = ""
    license: str = ""
    attention: Attention = "ort"
    precision: Precision = "fp32"
    notices: Sequence[Path] = ()
    examples: Sequence[str] = ()
    overwrite: bool = False
    device: DeviceChoice = "auto"


def export_run(
    run: Path, bundle: Path, options: Options, say: Callable[[str], None] = lambda _: None
) -> tuple[Manifest, Report]:
    """Exports a run, checks the graphs against the model, measures their quality, and only then puts the bundle in its place.

    Args:
        run: a directory that dragoman-train wrote.
        bundle: the directory to make; beside it, a temporary one stands meanwhile.
        say: takes lines for the user.

    Raises:
        ExportError: the run can't be read, the bundle exists, or the check failed. No new bundle is left behind then.
    """
    if bundle.exists() and not options.overwrite:
        raise ExportError(f"{bundle} exists already: choose another place, or pass --overwrite to replace it")
    if bundle.exists() and not (bundle / MANIFEST_FILE).exists() and (not bundle.is_dir() or any(bundle.iterdir())):
        raise ExportError(f"{bundle} is not a bundle (it has no {MANIFEST_FILE}), so it is not overwritten")
    for notice in options.notices:
        if not notice.is_file():
            raise ExportError(f"the notice {notice} is not a file")
    try:
        loaded = load_run(run)
        splits = read_splits(loaded.recipe, BadLines("skip"))
        data: dict[str, Sequence[Pair]] = {"dev": loaded.dev_pairs(), "test": splits.test}
    except TrainingError as error:
        raise ExportError(str(error)) from error
    bundle.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=f".{bundle.name}.", dir=bundle.parent))
    try:
        manifest, report = _build(loaded, data, folder, options, say)
        folder.chmod(0o755)  # mkdtemp makes it for its user alone
        _put(folder, bundle)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return manifest, report


def _build(
    run: Run, data: dict[str, Sequence[Pair]], folder: Path, options: Options, say: Callable[[str], None]
) -> tuple[Manifest, Report]:
    device_choice = options.device
    say("tracing the graphs")
    manifest = _write(run, data, folder, options)
    (folder / MANIFEST_FILE).write_text(_json(manifest))
    bundle = load_bundle(folder)
    device = choose_device(device_choice, bundle.decoder)
    say(f"comparing them with the model on {device}")
    report = check_bundle(bundle, run.model, _spread(data["dev"], GREEDY_SOURCES), device)
    if report.failures:
        raise ExportError(f"the check failed, so no bundle was made: {report.failures[0]}")
    say("measuring their quality")
    quality = measure(bundle, device, {k: v for k, v in data.items() if v}, run.recipe.evaluation.metrics)
    manifest = manifest.model_copy(update={"parity": report.document, "quality": quality})
    (folder / MANIFEST_FILE).write_text(_json(manifest))
    load_bundle(folder)
    return manifest, report


def _write(run: Run, data: dict[str, Sequence[Pair]], folder: Path, options: Options) -> Manifest:
    """Writes all files but the manifest."""
    shape = _shape(run)
    graphs = trace_graphs(run, options.attention, options.precision)
    interfaces = _interfaces(shape, options.attention, options.precision)
    save(graphs, folder)
    tokenizers = _write_tokenizers(run, folder)
    for notice in options.notices:
        shutil.copyfile(notice, folder / notice.name)
    return Manifest(
        name=options.name,
        version=options.version,
        description=options.description,
        license=options.license,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        precision=options.precision,
        attention=options.attention,
        shape=shape,
        tokens=SpecialTokens(pad=PAD_ID, unknown=UNKNOWN_ID, begin=BEGIN_ID, end=END_ID),
        limits=Limits(
            max_source_tokens=run.recipe.model.max_source_length,
            max_target_tokens=run.recipe.model.max_target_length,
        ),
        graphs=Graphs(**{name.removesuffix(".onnx"): _graph(name, ports) for name, ports in interfaces.items()}),
        tokenizers=tokenizers,
        files={path.name: _file(path) for path in sorted(folder.iterdir())},
        examples=list(options.examples) or _spread(data["dev"], EXAMPLES),
        training={**run.provenance, "files": _data_files(run), "operators": {n: operators(g) for n, g in graphs.items()}},
    )


def trace_graphs(run: Run, attention: Attention, precision: Precision) -> dict[str, onnx.ModelProto]:
    """The three graphs of a run by file name, with their weights inside."""
    model = folded(run.model).to(DTYPES[precision])
    interfaces = _interfaces(_shape(run), attention, precision)
    modules = {
        ENCODER: SourceEncoder(model, last=attention == "ort"),
        DECODER: DecoderStep(model, attention),
        SCORER: Scorer(model, END_ID),
    }
    return {name: trace(module, interfaces[name]) for name, module in modules.items()}


def _interfaces(shape: Shape, attention: Attention, precision: Precision) -> dict[str, Interface]:
    return {
        ENCODER: encoder_interface(shape, precision, attention),
        DECODER: decoder_interface(shape, precision, attention),
        SCORER: scorer_interface(shape),
    }


def _shape(run: Run) -> Shape:
    config = run.recipe.model
    return Shape(
        d_model=config.d_model,
        heads=config.heads,
        d_head=config.d_model // config.heads,
        d_ff=config.d_ff,
        encoder_layers=config.encoder_layers,
        decoder_layers=config.decoder_layers,
        source_vocabulary=run.source_tokenizer.get_vocab_size(),
        target_vocabulary=run.target_tokenizer.get_vocab_size(),
        parameters=sum(parameter.numel() for parameter in run.model.parameters()),
    )


def _write_tokenizers(run: Run, folder: Path) -> Tokenizers:
    """One file where source and target have one vocabulary."""
    source, target = run.source_tokenizer.to_str(pretty=True), run.target_tokenizer.to_str(pretty=True)
    names = Tokenizers(
        source="source_tokenizer.json", target="source_tokenizer.json" if target == source else "target_tokenizer.json"
    )
    (folder / names.source).write_text(source, encoding="utf-8")
    (folder / names.target).write_text(target, encoding="utf-8")
    return names


def _graph(name: str, interface: Interface) -> Graph:
    return Graph(
        file=name,
        inputs=[port.name for port in interface.inputs],
        outputs=[port.name for port in interface.outputs],
    )


def _file(path: Path) -> File:
    with path.open("rb") as file:
        return File(sha256=hashlib.file_digest(file, "sha256").hexdigest(), bytes=path.stat().st_size)


def _data_files(run: Run) -> dict[str, str | None]:
    """Names and sha256 of the files the run was trained on; None for one that is gone since."""
    files: list[Path] = []
    data = run.recipe.data
    for entry in [*data.train, *(data.dev or []), *(data.test or [])]:
        files += [entry] if isinstance(entry, Path) else [entry.source, entry.target]
    return {file.name: _file(file).sha256 if file.is_file() else None for file in files}


def _spread(pairs: Sequence[Pair], count: int) -> list[str]:
    """Distinct sources, evenly over all."""
    sources = list(dict.fromkeys(pair.source for pair in pairs))
    step = max(1, len(sources) // count)
    return sources[step // 2 :: step][:count]


def _json(manifest: Manifest) -> str:
    return json.dumps(manifest.model_dump(mode="json"), indent=2, ensure_ascii=False) + "\n"


def _put(folder: Path, bundle: Path) -> None:
    """Renames the finished folder into its place; an older bundle goes only when the new one stands."""
    if not bundle.exists():
        os.rename(folder, bundle)
        return
    old = Path(tempfile.mkdtemp(prefix=f".{bundle.name}.", dir=bundle.parent)) / "old"
    os.rename(bundle, old)
    try:
        os.rename(folder, bundle)
    except OSError:
        os.rename(old, bundle)
        raise
    finally:
        shutil.rmtree(old.parent, ignore_errors=True)
