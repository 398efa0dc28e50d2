"""Writes the files of a bundle: graphs, tokenizers, notices and the manifest that describes them."""

import hashlib
import json
import re
import shutil
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import torch

from dragoman_export.bundle.onnx_files import DECODER, ENCODER, SCORER, Models, save_models
from dragoman_export.bundle.options import ExportOptions
from dragoman_export.graphs import DecoderStep, Scorer, SourceEncoder, fold_model
from dragoman_export.graphs.folding import pad_vocabulary
from dragoman_export.graphs.interface import (
    DTYPES,
    Interface,
    decoder_interface,
    encoder_interface,
    keeps_weights,
    scorer_interface,
)
from dragoman_export.graphs.trace import count_operators, trace
from dragoman_export.graphs.two_pass_top_k import padded_vocabulary, split_top_k
from dragoman_export.original import Original
from dragoman_server.bundle.manifest import (
    CARRYING_VERSION,
    FORMAT_VERSION,
    MANIFEST_FILE,
    Attention,
    File,
    Graph,
    Graphs,
    Manifest,
    Precision,
    Shape,
    SpecialTokens,
    Tokenizers,
)
from dragoman_training.model import Transformer

EXPORTERS = ("dragoman", "onnx", "onnxscript", "torch")
OLDEST_ONNXRUNTIME = "1.32.0"  # the lower bound of pyproject.toml, with which all tests run

# Line breaks are between JSON's tokens only: in strings they are escaped.
_PLAIN_LIST = re.compile(r"\[\n\s*([^\[\]{}]*?)\n\s*\]")
_BREAK = re.compile(r"\n\s*")


def write_files(original: Original, folder: Path, options: ExportOptions, examples: Sequence[str]) -> Manifest:
    """Writes all files of a bundle except the manifest.

    Returns:
        The manifest, without the results of the check and the measurements.
    """
    shape = model_shape(original.model)
    graphs = trace_graphs(original.model, shape, original.tokens, options.attention, options.precision)
    save_models(graphs, folder)
    tokenizers = _write_tokenizers(original, folder)
    for notice in options.notices:
        shutil.copyfile(notice, folder / notice.name)
    provenance = {
        **original.provenance,
        "operators": {name: dict(count_operators(graph)) for name, graph in graphs.items()},
    }
    return Manifest(
        format_version=CARRYING_VERSION if options.carry_text else FORMAT_VERSION,
        name=options.name,
        version=options.version,
        description=options.description,
        license=options.license or original.license,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        precision=options.precision,
        attention=options.attention,
        shape=shape,
        tokens=original.tokens,
        limits=original.limits,
        graphs=Graphs(
            **{
                name.removesuffix(".onnx"): _graph(name, interface)
                for name, interface in _interfaces(shape, options.attention, options.precision).items()
            }
        ),
        tokenizers=tokenizers,
        files={path.name: file_entry(path) for path in sorted(folder.iterdir())},
        text=original.text,
        generation=original.generation,
        origin=dict(original.origin),
        carries_text=options.carry_text,
        unseen_source_tokens=list(original.unseen_source_tokens),
        examples=list(examples),
        exporter={name: version(name) for name in EXPORTERS},
        oldest_onnxruntime=OLDEST_ONNXRUNTIME,
        training=provenance,
    )


def write_manifest(manifest: Manifest, folder: Path) -> None:
    """Writes manifest.json, lists of plain values on one line each."""
    document = json.dumps(manifest.model_dump(mode="json"), indent=2, ensure_ascii=False)
    document = _PLAIN_LIST.sub(lambda match: f"[{_BREAK.sub(' ', match[1])}]", document)
    (folder / MANIFEST_FILE).write_text(document + "\n", encoding="utf-8")


def trace_graphs(
    model: Transformer, shape: Shape, tokens: SpecialTokens, attention: Attention, precision: Precision
) -> Models:
    """Returns the three graphs of a model by file name."""
    folded = fold_model(model).to(DTYPES[precision])
    if precision == "fp32":  # half precision is for GPUs, which find the best tokens otherwise
        pad_vocabulary(folded, padded_vocabulary(shape.target_vocabulary))
    modules = {
        ENCODER: SourceEncoder(folded, last=attention == "ort"),
        DECODER: DecoderStep(folded, attention, keeps=keeps_weights(precision)),
        SCORER: Scorer(folded, tokens.end),
    }
    ports = _interfaces(shape, attention, precision)
    graphs = {name: trace(module, ports[name]) for name, module in modules.items()}
    for parameter in folded.parameters():  # PyTorch's exporter keeps some of them, and their memory
        parameter.data = torch.empty(0)
    if precision == "fp32":
        split_top_k(graphs[DECODER], padded_vocabulary(shape.target_vocabulary))
    return graphs


def model_shape(model: Transformer) -> Shape:
    """Returns the dimensions of a model."""
    config = model.config
    decoder = config.decoder_layer
    return Shape(
        d_model=config.d_model,
        heads=decoder.heads,
        d_head=decoder.d_head,
        d_ff=max(config.encoder_layer.d_ff, decoder.d_ff),
        encoder_layers=config.encoder_layers,
        decoder_layers=config.decoder_layers,
        source_vocabulary=model.encoder.embedding.tokens.num_embeddings,
        target_vocabulary=model.decoder.projection.out_features,
        parameters=sum(parameter.numel() for parameter in model.parameters()),
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


def _write_tokenizers(original: Original, folder: Path) -> Tokenizers:
    """Writes one file if source and target share a tokenizer, else two; likewise SentencePiece models."""
    source, target = original.source.tokenizer.to_str(pretty=False), original.target.tokenizer.to_str(pretty=False)
    names = Tokenizers(
        source="source_tokenizer.json",
        target="source_tokenizer.json" if target == source else "target_tokenizer.json",
        source_pieces=_copy_pieces(original.source.pieces, folder / "source.spm"),
        target_pieces=_copy_pieces(original.target.pieces, folder / "target.spm"),
    )
    (folder / names.source).write_text(source, encoding="utf-8")
    (folder / names.target).write_text(target, encoding="utf-8")
    return names


def _copy_pieces(model: Path | None, place: Path) -> str:
    """Copies a SentencePiece model and returns its new name; empty for None."""
    if model is None:
        return ""
    shutil.copyfile(model, place)
    return place.name
