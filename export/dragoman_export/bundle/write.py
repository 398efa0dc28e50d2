"""Writes the files of a bundle: graphs, tokenizers, notices and the manifest that describes them."""

import hashlib
import json
import shutil
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from dragoman_export.bundle.onnx_files import DECODER, ENCODER, SCORER, Models, save_models
from dragoman_export.bundle.options import ExportOptions
from dragoman_export.graphs import DecoderStep, Scorer, SourceEncoder, fold_model
from dragoman_export.graphs.interface import DTYPES, Interface, decoder_interface, encoder_interface, scorer_interface
from dragoman_export.graphs.trace import count_operators, trace
from dragoman_export.graphs.two_pass_top_k import split_top_k
from dragoman_server.bundle.manifest import (
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
from dragoman_training.data.tokenizers import BEGIN_ID, END_ID, PAD_ID, UNKNOWN_ID
from dragoman_training.model import Transformer
from dragoman_training.run.load import Run

EXPORTERS = ("dragoman", "onnx", "onnxscript", "torch")
OLDEST_ONNXRUNTIME = "1.32.0"  # the lower bound of pyproject.toml, with which all tests run


def write_files(run: Run, folder: Path, options: ExportOptions, examples: Sequence[str]) -> Manifest:
    """Writes all files of a bundle except the manifest.

    Returns:
        The manifest, without the results of the check and the measurements.
    """
    shape = model_shape(run)
    graphs = trace_graphs(run.model, shape, options.attention, options.precision)
    save_models(graphs, folder)
    tokenizers = _write_tokenizers(run, folder)
    for notice in options.notices:
        shutil.copyfile(notice, folder / notice.name)
    provenance = {
        **run.provenance,
        "files": _data_files(run),
        "operators": {name: dict(count_operators(graph)) for name, graph in graphs.items()},
    }
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
        graphs=Graphs(
            **{
                name.removesuffix(".onnx"): _graph(name, interface)
                for name, interface in _interfaces(shape, options.attention, options.precision).items()
            }
        ),
        tokenizers=tokenizers,
        files={path.name: file_entry(path) for path in sorted(folder.iterdir())},
        unseen_source_tokens=run.unseen_source_tokens,
        examples=list(examples),
        exporter={name: version(name) for name in EXPORTERS},
        oldest_onnxruntime=OLDEST_ONNXRUNTIME,
        training=provenance,
    )


def write_manifest(manifest: Manifest, folder: Path) -> None:
    """Writes manifest.json."""
    document = json.dumps(manifest.model_dump(mode="json"), indent=2, ensure_ascii=False)
    (folder / MANIFEST_FILE).write_text(document + "\n", encoding="utf-8")


def trace_graphs(model: Transformer, shape: Shape, attention: Attention, precision: Precision) -> Models:
    """Returns the three graphs of a model by file name, with their weights inside."""
    folded = fold_model(model).to(DTYPES[precision])
    modules = {
        ENCODER: SourceEncoder(folded, last=attention == "ort"),
        DECODER: DecoderStep(folded, attention),
        SCORER: Scorer(folded, END_ID),
    }
    ports = _interfaces(shape, attention, precision)
    graphs = {name: trace(module, ports[name]) for name, module in modules.items()}
    if precision == "fp32":  # half precision is for GPUs
        split_top_k(graphs[DECODER], shape.target_vocabulary)
    return graphs


def model_shape(run: Run) -> Shape:
    """Returns the dimensions of a run's model."""
    config = run.recipe.model
    decoder = config.decoder_layer
    return Shape(
        d_model=config.d_model,
        heads=decoder.heads,
        d_head=decoder.d_head,
        d_ff=max(config.encoder_layer.d_ff, decoder.d_ff),
        encoder_layers=config.encoder_layers,
        decoder_layers=config.decoder_layers,
        source_vocabulary=run.source_tokenizer.get_vocab_size(),
        target_vocabulary=run.target_tokenizer.get_vocab_size(),
        parameters=sum(parameter.numel() for parameter in run.model.parameters()),
    )


def file_entry(path: Path) -> File:
    """Returns the manifest's entry for a file."""
    with path.open("rb") as file:
        return File(sha256=hashlib.file_digest(file, "sha256").hexdigest(), bytes=path.stat().st_size)


def _interfaces(shape: Shape, attention: Attention, precision: Precision) -> dict[str, Interface]:
    return {
        ENCODER: encoder_interface(shape, precision, attention),
        DECODER: decoder_interface(shape, precision, attention),
        SCORER: scorer_interface(shape),
    }


def _graph(name: str, interface: Interface) -> Graph:
    return Graph(
        file=name,
        inputs=[port.name for port in interface.inputs],
        outputs=[port.name for port in interface.outputs],
    )


def _write_tokenizers(run: Run, folder: Path) -> Tokenizers:
    """Writes one file if source and target share a tokenizer, else two."""
    source, target = run.source_tokenizer.to_str(pretty=True), run.target_tokenizer.to_str(pretty=True)
    names = Tokenizers(
        source="source_tokenizer.json", target="source_tokenizer.json" if target == source else "target_tokenizer.json"
    )
    (folder / names.source).write_text(source, encoding="utf-8")
    (folder / names.target).write_text(target, encoding="utf-8")
    return names


def _data_files(run: Run) -> dict[str, str | None]:
    """Returns name and SHA-256 of each file the run was trained on; None for a file that no longer exists."""
    files: list[Path] = []
    data = run.recipe.data
    for entry in [*data.train, *(data.dev or []), *(data.test or [])]:
        files += [entry] if isinstance(entry, Path) else [entry.source, entry.target]
    return {file.name: file_entry(file).sha256 if file.is_file() else None for file in files}
