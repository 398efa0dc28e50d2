"""The format of a bundle's manifest.json."""

from typing import Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field

FORMAT_VERSION = 3
READ_VERSIONS = (2, FORMAT_VERSION)  # in version 2 the weights of int8 had 8 bits, which not every CPU multiplies right
MANIFEST_FILE = "manifest.json"
NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"

Integers = Literal["int8", "int8-weights", "int4"]
Precision = Literal["fp32", "int8", "int8-weights", "int4", "fp16", "bf16"]
INTEGERS: tuple[Integers, ...] = get_args(Integers)
Attention = Literal["ort", "standard"]
Cache = Literal["float", "int8"]


class Part(BaseModel):
    """A part of the manifest: immutable, and strict about what stands in it."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Shape(Part):
    """The model's dimensions. `decoder_layers`, `heads` (of the decoder) and `d_head` give the caches theirs."""

    d_model: int = Field(ge=1)
    heads: int = Field(ge=1)
    d_head: int = Field(ge=1)
    d_ff: int = Field(ge=1)
    encoder_layers: int = Field(ge=1)
    decoder_layers: int = Field(ge=1)
    source_vocabulary: int = Field(ge=1)
    target_vocabulary: int = Field(ge=1)
    parameters: int = Field(ge=1)

    @property
    def attention_width(self) -> int:
        """Of the decoder's queries, keys and values, all heads together."""
        return self.heads * self.d_head


class SpecialTokens(Part):
    """Ids; `begin` is what the decoder reads first, `end` closes both source and target."""

    pad: int = Field(ge=0)
    unknown: int = Field(ge=0)
    begin: int = Field(ge=0)
    end: int = Field(ge=0)


class Limits(Part):
    """In tokens. The source counts its end token; the target does not."""

    max_source_tokens: int = Field(ge=1)
    max_target_tokens: int = Field(ge=1)


class Graph(Part):
    """An ONNX file of the bundle and the names of its inputs and outputs, in order."""

    file: str
    inputs: list[str]
    outputs: list[str]


class Graphs(Part):
    encoder: Graph
    decoder: Graph
    scorer: Graph


class Tokenizers(Part):
    """File names; the same name twice where the vocabulary is joint."""

    source: str
    target: str


class File(Part):
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    bytes: int = Field(ge=0)


class Manifest(Part):
    """What a bundle says of itself. `files` lists every file but the manifest."""

    format_version: Literal[2, 3] = 3
    name: str = Field(pattern=NAME_PATTERN)
    version: str = "1"
    description: str = ""
    license: str = ""
    created: str = ""
    precision: Precision = "fp32"
    attention: Attention
    cache: Cache = Field(default="float", description="numbers in it: those of the precision, or 8-bit integers")
    shape: Shape
    tokens: SpecialTokens
    limits: Limits
    graphs: Graphs
    tokenizers: Tokenizers
    files: dict[str, File]
    unseen_source_tokens: list[int] = Field(default=[], description="ids that occur in no source of the training data")
    examples: list[str] = Field(default=[], description="a few inputs the model is meant for")
    quality: dict[str, float] = Field(
        default={}, description="measured on data, by name: 'test sequence error rate (%)'"
    )
    parity: dict[str, Any] = Field(default={}, description="report of the export check")
    exporter: dict[str, str] = Field(default={}, description="versions of the programs that made the graphs, by name")
    oldest_onnxruntime: str = Field(
        default="",
        pattern=r"^(\d+\.\d+(\.\d+)*)?$",
        description="oldest ONNX Runtime that such bundles are checked with on CPUs",
    )
    loss: dict[str, Any] = Field(default={}, description="what a precision below fp32 costs and brings, as measured")
    training: dict[str, Any] = Field(default={}, description="provenance: recipe, steps, data files and their sha256")
