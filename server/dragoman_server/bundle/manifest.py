"""The format of a bundle's manifest.json."""

from typing import Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field

FORMAT_VERSION = 3
READ_VERSIONS = (2, FORMAT_VERSION)  # version 2 had 8-bit weights in int8, which overflow on some CPUs
MANIFEST_FILE = "manifest.json"
NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"

Integers = Literal["int8", "int8-weights", "int4"]
Precision = Literal["fp32", "int8", "int8-weights", "int4", "fp16", "bf16"]
INTEGERS: tuple[Integers, ...] = get_args(Integers)
Attention = Literal["ort", "standard"]
Cache = Literal["float", "int8"]


class Part(BaseModel):
    """A part of the manifest: immutable, with no unknown fields."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Shape(Part):
    """The dimensions of the model. `decoder_layers`, `heads` and `d_head` are also those of the caches."""

    d_model: int = Field(ge=1)
    heads: int = Field(ge=1, description="attention heads of the decoder")
    d_head: int = Field(ge=1)
    d_ff: int = Field(ge=1)
    encoder_layers: int = Field(ge=1)
    decoder_layers: int = Field(ge=1)
    source_vocabulary: int = Field(ge=1, description="number of source tokens")
    target_vocabulary: int = Field(ge=1, description="number of target tokens")
    parameters: int = Field(ge=1, description="number of parameters")

    @property
    def attention_width(self) -> int:
        """The width of the decoder's queries, keys and values, all heads together."""
        return self.heads * self.d_head


class SpecialTokens(Part):
    """Ids of the special tokens."""

    pad: int = Field(ge=0)
    unknown: int = Field(ge=0)
    begin: int = Field(ge=0, description="the decoder's first input")
    end: int = Field(ge=0, description="the last token of both source and target")


class Limits(Part):
    """The longest sequences, in tokens."""

    max_source_tokens: int = Field(ge=1, description="includes the end token")
    max_target_tokens: int = Field(ge=1, description="excludes the end token")


class Graph(Part):
    """An ONNX file of the bundle."""

    file: str
    inputs: list[str] = Field(description="names, in order")
    outputs: list[str] = Field(description="names, in order")


class Graphs(Part):
    """The graphs of the model."""

    encoder: Graph
    decoder: Graph
    scorer: Graph


class Tokenizers(Part):
    """File names of the tokenizers; the same name twice if the vocabulary is joint."""

    source: str
    target: str


class File(Part):
    """Checksum and size of a file."""

    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    bytes: int = Field(ge=0)


class Manifest(Part):
    """The description of a bundle."""

    format_version: Literal[2, 3] = 3
    name: str = Field(pattern=NAME_PATTERN, description="default name of the model")
    version: str = "1"
    description: str = ""
    license: str = ""
    created: str = Field(default="", description="date and time of the export")
    precision: Precision = "fp32"
    attention: Attention = Field(description="attention operators: ONNX Runtime's own or standard ONNX")
    cache: Cache = Field(
        default="float", description="element type of the caches: that of the precision, or 8-bit integers"
    )
    shape: Shape
    tokens: SpecialTokens
    limits: Limits
    graphs: Graphs
    tokenizers: Tokenizers
    files: dict[str, File] = Field(description="every file of the bundle except the manifest, by name")
    unseen_source_tokens: list[int] = Field(default=[], description="source ids that the training data lacks")
    examples: list[str] = Field(default=[], description="typical inputs")
    quality: dict[str, float] = Field(
        default={}, description="measured quality by metric, such as 'test sequence error rate (%)'"
    )
    parity: dict[str, Any] = Field(default={}, description="report of the parity check")
    exporter: dict[str, str] = Field(default={}, description="versions of the packages that made the graphs, by name")
    oldest_onnxruntime: str = Field(
        default="",
        pattern=r"^(\d+\.\d+(\.\d+)*)?$",
        description="oldest ONNX Runtime with which such bundles are tested on CPUs",
    )
    loss: dict[str, Any] = Field(default={}, description="measured quality loss and speedup of a precision below fp32")
    training: dict[str, Any] = Field(default={}, description="provenance: recipe, steps, data files and their sha256")
