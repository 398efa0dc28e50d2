"""The options of exports and imports. Imports nothing heavy, for the command line."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from dragoman_server.bundle.manifest import Attention, Precision

MOST_LOST, MOST_LOST_BY_IMPORTS = 0.1, 10.0  # points, see `ExportOptions.max_quality_loss`
CHECK_SAMPLES = 256
CacheChoice = Literal["auto", "float", "int8"]
Program = Literal["transformers", "ctranslate2", "marian"]


@dataclass(frozen=True)
class ExportOptions:
    """The options of an export.

    Attributes:
        name: Name of the model.
        version: Version of the model.
        description: One line about the model.
        license: License of the weights, an SPDX expression.
        attention: `ort` runs on ONNX Runtime alone, and faster; `standard` uses only standard ONNX operators.
        precision: Precision of the weights.
        max_quality_loss: Points that a precision below fp32 may lose: of a run's metrics on dev, or of chrF against
            the answers of an imported model in fp32.
        cache: Numbers in the caches of an int8 bundle; `auto` takes whichever makes steps faster on this machine.
        notices: Licenses and attributions to copy into the bundle.
        examples: Inputs that the model is meant for; by default some sources of dev.
        overwrite: Whether to replace an existing bundle.
        device: Device to check the graphs on.
        shortlist: Whether to add a lexical shortlist if the model has a large vocabulary.
        shortlist_from: File of pairs, tab-separated, to make one from, however small the vocabulary; None for the
            training pairs of a run.
        carry_text: Whether text that the source tokenizer lacks skips the model and is put back into its answers.
        check_samples: Sources whose answers by graphs and model are compared, and rows of the largest batch of steps
            that are.
    """

    name: str
    version: str = "1"
    description: str = ""
    license: str = ""
    attention: Attention = "ort"
    precision: Precision = "fp32"
    max_quality_loss: float = MOST_LOST
    cache: CacheChoice = "auto"
    notices: Sequence[Path] = ()
    examples: Sequence[str] = ()
    overwrite: bool = False
    device: str = "auto"
    shortlist: bool = True
    shortlist_from: Path | None = None
    carry_text: bool = False
    check_samples: int = CHECK_SAMPLES


@dataclass(frozen=True)
class ImportOptions:
    """The options of an import.

    Attributes:
        program: The program that made the model.
        model: Directory, file or name of the model.
        tokenizer: Directory or files of the tokenizer, if the model has none.
        revision: Branch, tag or commit of a model on the hub.
        ignore: Generation settings to ignore although they would change tokens.
        sources: File of texts to compare answers on, one per line; None for the ones in this package.
    """

    program: Program
    model: str
    tokenizer: Sequence[Path] = ()
    revision: str | None = None
    ignore: Sequence[str] = ()
    sources: Path | None = None
