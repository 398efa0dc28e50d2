"""Reads models of other programs as originals of bundles."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from dragoman_export.bundle.fingerprint import FINGERPRINT, fingerprint
from dragoman_export.bundle.options import ImportOptions, Program
from dragoman_export.ctranslate2 import reader as ctranslate2
from dragoman_export.errors import ExportError
from dragoman_export.huggingface import reader as huggingface
from dragoman_export.marian import reader as marian
from dragoman_export.original import Original
from dragoman_server.messages.blank_text import is_blank

SAMPLES = Path(__file__).with_name("samples.txt")
Reader = Callable[[ImportOptions, Callable[[str], None]], Original]


def _transformers(options: ImportOptions, say: Callable[[str], None]) -> Original:
    return huggingface.read_original(options.model, options.revision, options.ignore, say)


def _ctranslate2(options: ImportOptions, say: Callable[[str], None]) -> Original:
    if len(options.tokenizer) != 1:
        raise ExportError(
            "--from-ctranslate2 needs --tokenizer DIR, a Hugging Face directory with the model's tokenizer"
        )
    return ctranslate2.read_original(options.model, options.tokenizer[0], options.ignore, say)


def _marian(options: ImportOptions, say: Callable[[str], None]) -> Original:
    if not options.tokenizer:
        raise ExportError("--from-marian needs --tokenizer: vocab.yml and the .spm files, or their directory")
    return marian.read_original(options.model, options.tokenizer, options.ignore, say)


READERS: Mapping[Program, Reader] = {"transformers": _transformers, "ctranslate2": _ctranslate2, "marian": _marian}


def read_import(options: ImportOptions, say: Callable[[str], None]) -> Original:
    """Reads a model.

    Args:
        options: Options of the import.
        say: Prints a line for the user.

    Raises:
        ExportError: The model or the file of sources cannot be read.
    """
    sources = read_sources(options.sources or SAMPLES)
    original = READERS[options.program](options, say)
    provenance = dict(original.provenance)
    if files := fingerprint(options):
        provenance[FINGERPRINT] = files
    return replace(original, sources=sources, typical=options.sources is not None, provenance=provenance)


def read_sources(path: Path) -> list[str]:
    """Returns the distinct lines of a file that are not blank.

    Raises:
        ExportError: The file cannot be read, or has no such line.
    """
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ExportError(f"{path}: cannot be read ({error})") from None
    texts = list(dict.fromkeys(line.strip("\r") for line in lines if not is_blank(line)))
    if not texts:
        raise ExportError(f"{path}: has no text; expected one source a line")
    return texts
