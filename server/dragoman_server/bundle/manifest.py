"""The format of a bundle's manifest.json."""

from typing import Any, Final, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field

# Version 2 had 8-bit weights in int8, which overflow on some CPUs; version 3 had neither `text` nor `generation`;
# version 4 had no `shortlist`, and still is that of bundles without one; version 6 is that of bundles that carry text.
FORMAT_VERSION: Final = 4
SHORTLIST_VERSION = 5
CARRYING_VERSION: Final = 6
READ_VERSIONS = (2, 3, FORMAT_VERSION, SHORTLIST_VERSION, CARRYING_VERSION)
NARROW_INT8_VERSION = 3  # from which int8 products have 7-bit weights
MANIFEST_FILE = "manifest.json"
NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"

Integers = Literal["int8", "int8-weights", "int4"]
Precision = Literal["fp32", "int8", "int8-weights", "int4", "fp16", "bf16"]
INTEGERS: tuple[Integers, ...] = get_args(Integers)
Attention = Literal["ort", "standard"]
Cache = Literal["float", "int8"]


Side = Literal["source", "target"]
SourcePart = int | Literal["source_language", "target_language"]


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
    """File names of the tokenizers; the same name twice if the vocabulary is joint.

    With a SentencePiece model, texts are split by it and its pieces are looked up in the tokenizer's vocabulary.
    """

    source: str
    target: str
    source_pieces: str = Field(default="", description="file name of a SentencePiece model; empty for none")
    target_pieces: str = Field(default="", description="file name of a SentencePiece model; empty for none")


class LanguageTokens(Part):
    """Token ids of a language on each side; None if it cannot be chosen there.

    The first decoder token is `target` if `Text.forces_language`.
    """

    source: int | None = Field(default=None, ge=0)
    target: int | None = Field(default=None, ge=0)


class Text(Part):
    """How an imported model's texts become token ids.

    Without it the tokenizers add the end token themselves, and characters that are not in the vocabulary are refused.
    """

    before: list[SourcePart] = Field(
        default=[], description="ids before those of a source, or languages of the request"
    )
    after: list[SourcePart] = Field(default=[], description="ids after those of a source, or languages of the request")
    prefix: str = Field(default="", description="text put before a source, with {target_language}")
    languages: dict[str, LanguageTokens] = Field(default={}, description="languages by code")
    source_language: str = Field(default="", description="default source language")
    target_language: str = Field(default="", description="default target language")
    forces_language: bool = Field(default=False, description="whether targets start with the target language's token")


class Generation(Part):
    """How an imported model generates unless a request says otherwise, and the rules it was published with."""

    options: dict[str, Any] = Field(default={}, description="default GenerationOptions, as protobuf's JSON")
    forced_first: int | None = Field(default=None, ge=0, description="first token of every target")
    forces_end: bool = Field(
        default=False, description="whether a target of the maximum length ends with the end token, of probability 1"
    )
    begin_suppressed: list[int] = Field(default=[], description="tokens that cannot come first")
    renormalized: bool = Field(
        default=True, description="whether probabilities are renormalized after tokens were excluded"
    )
    whole_history: bool = Field(
        default=False, description="whether rules on repetition see the begin token and the forced first token"
    )


class LexicalShortlist(Part):
    """Which target tokens are likely for each source token, see `Shortlist`."""

    file: str
    default: bool = Field(description="whether requests use it unless they say otherwise")
    tokens: float = Field(ge=0, description="mean number of target tokens for a source of dev")
    points_lost: float | None = Field(default=None, description="points of quality lost on dev; None if unknown")
    step_time: dict[str, float] = Field(
        default={}, description="duration of a step as a share of that without it, by number of rows"
    )
    measured: dict[str, Any] = Field(default={}, description="what was measured, and on which data")


class File(Part):
    """Checksum and size of a file."""

    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    bytes: int = Field(ge=0)


class Manifest(Part):
    """The description of a bundle."""

    format_version: Literal[2, 3, 4, 5, 6] = 4
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
    text: Text | None = None
    generation: Generation | None = None
    shortlist: LexicalShortlist | None = None
    origin: dict[str, str] = Field(
        default={}, description="of an imported model: name, revision, license and address of the model card"
    )
    carries_text: bool = Field(
        default=False, description="whether text that the model can't read skips it and is put back into its answers"
    )
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
