"""A bundle as a server over CTranslate2 takes it: the converted model, with its tokenizers beside it."""

from pathlib import Path

from server.bundle.load import Bundle
from server.bundle.manifest import MANIFEST_FILE
from tests.benchmark.servers.translation import SOURCE_TOKENIZER, TARGET_TOKENIZER
from tests.support.bundle_weights import load_model
from tests.support.ctranslate2_model import convert

ORIGIN = "converted-from.json"


def convert_with_tokenizers(bundle: Bundle, folder: Path) -> None:
    """Writes it to `folder`, unless it is there from the same bundle.

    Raises:
        UnreadableGraphError: the bundle's graphs are not understood.
    """
    manifest = (bundle.path / MANIFEST_FILE).read_bytes()  # it has the hash of every file
    origin = folder / ORIGIN
    if origin.exists() and origin.read_bytes() == manifest:
        return
    convert(load_model(bundle), bundle.source_tokenizer, bundle.target_tokenizer, folder)
    bundle.source_tokenizer.save(str(folder / SOURCE_TOKENIZER))
    bundle.target_tokenizer.save(str(folder / TARGET_TOKENIZER))
    origin.write_bytes(manifest)
