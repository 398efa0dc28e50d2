"""Names, types and shapes of the inputs and outputs of the graphs, for the exporter and the manifest."""

from dataclasses import dataclass

import torch
from torch import Tensor

from dragoman_server.bundle.manifest import Attention, Precision, Shape

Dimension = int | str  # a number, or the name of a dimension that varies from call to call

# Sizes to trace with. They all differ, and none is 0 or 1, which the exporter would take for constants.
EXAMPLE_SIZES = {
    "rows": 2,
    "source": 5,
    "target": 7,
    "self_positions": 11,
    "cross_positions": 13,
    "scored": 4,
    "k": 3,
    "edits": 6,
    "listed": 9,
    "own": 15,
    "short": 8,
    "short_k": 10,
    "short_edits": 12,
    "attended": 14,
    "new": 16,
}
DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


@dataclass(frozen=True)
class Port:
    """An input or output of a graph."""

    name: str
    dtype: torch.dtype
    shape: tuple[Dimension, ...]

    def example(self) -> Tensor:
        """Returns ones of a small size."""
        return torch.ones([EXAMPLE_SIZES[d] if isinstance(d, str) else d for d in self.shape], dtype=self.dtype)

    def dynamic(self, dimensions: dict[str, torch.export.Dim]) -> dict[int, torch.export.Dim]:
        """Returns the dynamic axes in the form that the exporter takes."""
        return {axis: dimensions[d] for axis, d in enumerate(self.shape) if isinstance(d, str)}


@dataclass(frozen=True)
class Interface:
    """The inputs and outputs of a graph, in order."""

    inputs: list[Port]
    outputs: list[Port]


def encoder_interface(shape: Shape, precision: Precision, attention: Attention) -> Interface:
    """Returns the interface of encoder.onnx."""
    outputs = [
        port
        for layer in range(shape.decoder_layers)
        for port in _cross_cache(shape, precision, layer, "source") + _last_position(shape, precision, layer, attention)
    ]
    return Interface(_source(), outputs)


def decoder_interface(shape: Shape, precision: Precision, attention: Attention) -> Interface:
    """Returns the interface of decoder.onnx. `graphs.decoder.StepInputs` groups its inputs."""
    kept: list[Port] = []
    if keeps_weights(precision):
        kept = [
            Port("short_weights", DTYPES[precision], ("listed", shape.d_model)),
            Port("short_new", torch.int64, ("new",)),
            Port("short_places", torch.int64, ("new", 1)),
        ]
    inputs = [
        Port("token_ids", torch.int64, ("rows", 1)),
        Port("positions", torch.int32, ("rows",)),
        Port("source_lengths", torch.int32, ("rows",)),
        *_head_inputs("", "scored"),
        Port("short_list", torch.int64, ("listed",)),
        Port("short_columns", torch.int64, ("short", "own")),
        Port("short_mask", torch.float32, ("short", "own")),
        *_head_inputs("short_", "short"),
        *kept,
        Port("attention_rows", torch.int64, ("attended",)),
    ]
    outputs = [
        *_head_outputs("", "scored"),
        *_head_outputs("short_", "short"),
        *(Port(f"{port.name}_out", port.dtype, port.shape) for port in kept[:1]),
        Port("attention", torch.float32, ("attended", "cross_positions")),
    ]
    if attention == "ort":
        inputs += [Port("self_capacity", torch.int32, ()), Port("cross_capacity", torch.int32, ())]
    for layer in range(shape.decoder_layers):
        own = _cache(shape, precision, "self", layer, "self_positions")
        cross = _cross_cache(shape, precision, layer, "cross_positions")
        inputs += own + cross + _last_position(shape, precision, layer, attention)
        written = own + cross if attention == "ort" else own
        outputs += [Port(f"{port.name}_out", port.dtype, port.shape) for port in written]
    return Interface(inputs, outputs)


def keeps_weights(precision: Precision) -> bool:
    """Returns whether steps keep the weights of shortlists. Graphs for GPUs, where few requests have one, do not."""
    return precision not in ("fp16", "bf16")


def scorer_interface(shape: Shape) -> Interface:
    """Returns the interface of scorer.onnx."""
    inputs = [
        *_source(),
        Port("target_ids", torch.int64, ("rows", "target")),
        Port("target_lengths", torch.int32, ("rows",)),
    ]
    attention = ("rows", shape.decoder_layers, shape.heads, "target", "source")
    outputs = [
        Port("log_probabilities", torch.float32, ("rows", "target")),
        Port("cross_attention", torch.float32, attention),
    ]
    return Interface(inputs, outputs)


def _source() -> list[Port]:
    return [Port("source_ids", torch.int64, ("rows", "source")), Port("source_lengths", torch.int32, ("rows",))]


def _head_inputs(prefix: str, rows: str) -> list[Port]:
    """Returns the ports of one `graphs.head.HeadInputs`."""
    edits = (rows, f"{prefix}edits")
    return [
        Port(f"{prefix}rows", torch.int64, (rows,)),
        Port(f"{prefix}scales", torch.float32, (rows, 1)),
        Port(f"{prefix}k", torch.int64, (1,)),
        Port(f"{prefix}edit_ids", torch.int64, edits),
        Port(f"{prefix}edit_penalties", torch.float32, edits),
        Port(f"{prefix}edit_offsets", torch.float32, edits),
    ]


def _head_outputs(prefix: str, rows: str) -> list[Port]:
    return [
        Port(f"{prefix}log_probabilities", torch.float32, (rows, f"{prefix}k")),
        Port(f"{prefix}ids", torch.int64, (rows, f"{prefix}k")),
        Port(f"{prefix}edited", torch.float32, (rows, f"{prefix}edits")),
    ]


def _cache(shape: Shape, precision: Precision, kind: str, layer: int, positions: str) -> list[Port]:
    dimensions = ("rows", shape.heads, positions, shape.d_head)
    return [Port(f"{kind}_{part}_{layer}", DTYPES[precision], dimensions) for part in ("key", "value")]


def _cross_cache(shape: Shape, precision: Precision, layer: int, positions: str) -> list[Port]:
    return _cache(shape, precision, "cross", layer, positions)


def _last_position(shape: Shape, precision: Precision, layer: int, attention: Attention) -> list[Port]:
    """Returns key and value of the last source position, which only GroupQueryAttention needs."""
    if attention == "standard":
        return []
    dimensions = ("rows", 1, shape.attention_width)
    return [Port(f"last_{part}_{layer}", DTYPES[precision], dimensions) for part in ("key", "value")]
