"""Loads and verifies a bundle."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from tokenizers import Tokenizer

from dragoman_server.bundle.manifest import (
    MANIFEST_FILE,
    NARROW_INT8_VERSION,
    READ_VERSIONS,
    Generation,
    Manifest,
    Text,
)
from dragoman_server.bundle.segmenter import Pieces, load_pieces
from dragoman_server.bundle.shortlist import Shortlist, ShortlistError, read_shortlist


class BundleError(Exception):
    """The bundle can't be served; the message is one sentence that names the file and the fault."""


@dataclass(frozen=True, slots=True)
class Bundle:
    """A verified bundle.

    Attributes:
        path: The directory, with links resolved.
        source_pieces, target_pieces: SentencePiece models that split texts for the tokenizers, see Segmenter.
        shortlist: Likely target tokens by source token; None if the bundle has none.
    """

    path: Path
    manifest: Manifest
    source_tokenizer: Tokenizer
    target_tokenizer: Tokenizer
    source_pieces: Pieces | None = None
    target_pieces: Pieces | None = None
    shortlist: Shortlist | None = None

    @property
    def encoder(self) -> Path:
        return self.path / self.manifest.graphs.encoder.file

    @property
    def decoder(self) -> Path:
        return self.path / self.manifest.graphs.decoder.file

    @property
    def scorer(self) -> Path:
        return self.path / self.manifest.graphs.scorer.file


def load_bundle(path: Path) -> Bundle:
    """Reads the manifest, checks every file against it, and loads the tokenizers.

    Args:
        path: The bundle's directory. Symbolic links to it or in it are followed, as Kubernetes mounts need.

    Raises:
        BundleError: A file is missing, changed or inconsistent with the manifest.
    """
    root, manifest = load_manifest(path)
    for name, expected in manifest.files.items():
        _check_file(root, name, expected.sha256, expected.bytes)
    graphs, tokenizers = manifest.graphs, manifest.tokenizers
    used = [graphs.encoder.file, graphs.decoder.file, graphs.scorer.file, tokenizers.source, tokenizers.target]
    pieces = [tokenizers.source_pieces, tokenizers.target_pieces]
    shortlist = "" if manifest.shortlist is None else manifest.shortlist.file
    for name in (*used, *filter(None, [*pieces, shortlist])):
        if name not in manifest.files:
            raise BundleError(f"{root / MANIFEST_FILE}: {name} is used but not listed under files")
    source = _load_tokenizer(root / tokenizers.source, manifest, manifest.shape.source_vocabulary)
    same = tokenizers.target == tokenizers.source
    target = source if same else _load_tokenizer(root / tokenizers.target, manifest, manifest.shape.target_vocabulary)
    if manifest.text is not None:
        _check_text(root, manifest, manifest.text)
    if manifest.generation is not None:
        _check_generation(root, manifest, manifest.generation)
    source_pieces, target_pieces = (_load_pieces(root / name) if name else None for name in pieces)
    lists = _load_shortlist(root / shortlist, manifest) if shortlist else None
    return Bundle(root, manifest, source, target, source_pieces, target_pieces, lists)


def load_manifest(path: Path) -> tuple[Path, Manifest]:
    """Returns a bundle's directory, with links resolved, and its manifest, without checking the files it lists.

    Raises:
        BundleError: The directory is missing, or has no manifest that this server can read.
    """
    try:
        root = path.resolve(strict=True)
    except OSError as error:
        raise BundleError(f"bundle {path} can't be opened: {error.strerror or error}") from None
    except RuntimeError:  # Python before 3.13
        raise BundleError(f"bundle {path} can't be opened: its symbolic links form a loop") from None
    if not root.is_dir():
        raise BundleError(f"bundle {path} is not a directory")
    return root, _read_manifest(root)


def _read_manifest(root: Path) -> Manifest:
    path = root / MANIFEST_FILE
    try:
        document: Any = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise BundleError(f"{root} is not a bundle: it has no {MANIFEST_FILE}") from None
    except OSError as error:
        raise BundleError(f"{path} can't be read: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise BundleError(f"{path} is not valid JSON: {error}") from None
    version = document.get("format_version") if isinstance(document, dict) else None
    if type(version) is not int or version not in READ_VERSIONS:  # 2.0 == 2
        raise BundleError(
            f"{path}: format_version is {version!r}, but this server reads versions "
            f"{' and '.join(map(str, READ_VERSIONS))}; export the model again with a matching dragoman-export"
        )
    try:
        manifest = Manifest.model_validate(document)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        raise BundleError(f"{path}: {field}: {first['msg']}") from None
    if version < NARROW_INT8_VERSION and manifest.precision == "int8":
        raise BundleError(
            f"{path}: an int8 bundle of format_version {version} has 8-bit weights, which overflow on CPUs "
            "without VNNI; export the run again with this version's dragoman-export"
        )
    return manifest


def _check_file(root: Path, name: str, sha256: str, size: int) -> None:
    path = root / name
    if Path(name).name != name or "\0" in name:
        raise BundleError(f"{root / MANIFEST_FILE}: files: {name!r} is not a plain file name")
    try:
        actual = path.stat().st_size
        if actual != size:
            raise BundleError(f"{path} has {actual} bytes, but the manifest says {size}: truncated or changed")
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError:
        raise BundleError(f"{path} is missing, but the manifest lists it") from None
    except OSError as error:
        raise BundleError(f"{path} can't be read: {error.strerror or error}") from None
    if digest != sha256:
        raise BundleError(f"{path} was changed: its sha256 is not the one in the manifest")


def _load_shortlist(path: Path, manifest: Manifest) -> Shortlist:
    shape, end = manifest.shape, manifest.tokens.end
    try:
        shortlist = read_shortlist(path, shape.source_vocabulary, shape.target_vocabulary)
    except OSError as error:
        raise BundleError(f"{path} can't be read: {error.strerror or error}") from None
    except ShortlistError as error:
        raise BundleError(f"{path} {error}") from None
    if end not in shortlist.common:
        raise BundleError(f"{path} lacks the end token {end}, which every source needs")
    return shortlist


def _load_pieces(path: Path) -> Pieces:
    try:
        return load_pieces(path)
    except ModuleNotFoundError:
        raise BundleError(f"{path} needs the package sentencepiece: pip install sentencepiece") from None
    except (OSError, RuntimeError) as error:
        raise BundleError(f"{path} is not a SentencePiece model: {error}") from None


def _check_text(root: Path, manifest: Manifest, text: Text) -> None:
    """Checks that ids are within the tables, and that default languages exist."""
    path, shape = root / MANIFEST_FILE, manifest.shape
    source = [part for part in (*text.before, *text.after) if isinstance(part, int)]
    source += [tokens.source for tokens in text.languages.values() if tokens.source is not None]
    target = [tokens.target for tokens in text.languages.values() if tokens.target is not None]
    for ids, size, side in ((source, shape.source_vocabulary, "source"), (target, shape.target_vocabulary, "target")):
        if bad := [id_ for id_ in ids if not 0 <= id_ < size]:
            raise BundleError(f"{path}: text: {bad[0]} is not the id of a {side} token, of which there are {size}")
    for field in ("source_language", "target_language"):
        code = getattr(text, field)
        if code and code not in text.languages:
            raise BundleError(f"{path}: text.{field} is {code!r}, which is not one of its languages")


def _check_generation(root: Path, manifest: Manifest, generation: Generation) -> None:
    """Checks that ids are within the table of the target: another one would fail the step of all requests."""
    size = manifest.shape.target_vocabulary
    forced = [] if generation.forced_first is None else [generation.forced_first]
    if bad := [id_ for id_ in (*forced, *generation.begin_suppressed) if not 0 <= id_ < size]:
        problem = f"{bad[0]} is not the id of a target token, of which there are {size}"
        raise BundleError(f"{root / MANIFEST_FILE}: generation: {problem}")


def _load_tokenizer(path: Path, manifest: Manifest, vocabulary: int) -> Tokenizer:
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # tokenizers raises plain Exception
        raise BundleError(f"{path} is not a tokenizer: {error}") from None
    size = tokenizer.get_vocab_size()
    if manifest.text is not None:  # whose table may have rows without a token, and special tokens other names
        if size > vocabulary:
            raise BundleError(f"{path} has {size} tokens, but the manifest says {vocabulary}")
        return tokenizer
    if size != vocabulary:
        raise BundleError(f"{path} has {size} tokens, but the manifest says {vocabulary}")
    special = manifest.tokens
    for role, token, index in (
        ("pad", "<pad>", special.pad),
        ("unknown", "<unk>", special.unknown),
        ("begin", "<s>", special.begin),
        ("end", "</s>", special.end),
    ):
        if tokenizer.token_to_id(token) != index:
            raise BundleError(
                f"{path}: the {role} token {token} has id {tokenizer.token_to_id(token)}, but the manifest says {index}"
            )
    return tokenizer
