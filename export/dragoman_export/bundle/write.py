"""Writes the files of a bundle: graphs, tokenizers, notices, and what the manifest says of them."""

import hashlib
import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Literal

import onnx

from dragoman_export.bundle.onnx_files import operators, save, trace
from dragoman_export.graphs import DecoderStep, Scorer, SourceEncoder, fold_model
from dragoman_export.graphs.interface import DTYPES, Interface, decoder_interface, encoder_interface, scorer_interface
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

CacheChoice = Literal["auto", "float", "int8"]
EXPORTERS = ("dragoman", "onnx", "onnxscript", "torch")
OLDEST_ONNXRUNTIME = "1.32.0"  # the lower bound of pyproject.toml, on which all tests run
ENCODER, DECODER, SCORER = "encoder.onnx", "decoder.onnx", "scorer.onnx"


@dataclass(frozen=True)
class ExportOptions:
    """What can be chosen of a bundle.

    Attributes:
        attention: `ort` runs on ONNX Runtime alone, and faster; `standard` has nothing but standard ONNX.
        notices: files to put into the bundle beside the model: licences, attributions.
        max_quality_loss: points that a precision below fp32 may cost on dev.
        cache: numbers in the caches of a bundle of int8; `auto` takes those with which steps are faster here.
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
    max_quality_loss: float = 0.1
    cache: CacheChoice = "auto"
    notices: Sequence[Path] = ()
    examples: Sequence[str] = ()
    overwrite: bool = False
    device: str = "auto"


def write_files(run: Run, folder: Path, options: ExportOptions, examples: Sequence[str]) -> Manifest:
    """Writes all files of a bundle but its manifest.

    Returns:
        the manifest, without the outcome of the check and of the measurements.
    """
    shape = model_shape(run)
    graphs = trace_graphs(run.model, shape, options.attention, options.precision)
    save(graphs, folder)
    tokenizers = _write_tokenizers(run, folder)
    for notice in options.notices:
        shutil.copyfile(notice, folder / notice.name)
    provenance = {
        **run.provenance,
        "files": _data_files(run),
        "operators": {name: dict(operators(graph)) for name, graph in graphs.items()},
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
                for name, interface in interfaces(shape, options.attention, options.precision).items()
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


def trace_graphs(
    model: Transformer, shape: Shape, attention: Attention, precision: Precision
) -> dict[str, onnx.ModelProto]:
    """The three graphs of a model by file name, with their weights inside."""
    ready = fold_model(model).to(DTYPES[precision])
    modules = {
        ENCODER: SourceEncoder(ready, last=attention == "ort"),
        DECODER: DecoderStep(ready, attention),
        SCORER: Scorer(ready, END_ID),
    }
    ports = interfaces(shape, attention, precision)
    graphs = {name: trace(module, ports[name]) for name, module in modules.items()}
    if precision == "fp32":  # what GPUs compute is in half precision
        split_top_k(graphs[DECODER], shape.target_vocabulary)
    return graphs


def interfaces(shape: Shape, attention: Attention, precision: Precision) -> dict[str, Interface]:
    """Inputs and outputs of the three graphs by file name."""
    return {
        ENCODER: encoder_interface(shape, precision, attention),
        DECODER: decoder_interface(shape, precision, attention),
        SCORER: scorer_interface(shape),
    }


def model_shape(run: Run) -> Shape:
    """The model's dimensions."""
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


def file_entry(path: Path) -> File:
    """What the manifest says of a file."""
    with path.open("rb") as file:
        return File(sha256=hashlib.file_digest(file, "sha256").hexdigest(), bytes=path.stat().st_size)


def _data_files(run: Run) -> dict[str, str | None]:
    """Names and sha256 of the files the run was trained on; None for one that is gone since."""
    files: list[Path] = []
    data = run.recipe.data
    for entry in [*data.train, *(data.dev or []), *(data.test or [])]:
        files += [entry] if isinstance(entry, Path) else [entry.source, entry.target]
    return {file.name: file_entry(file).sha256 if file.is_file() else None for file in files}
