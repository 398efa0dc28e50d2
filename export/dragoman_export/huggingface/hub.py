"""Downloads models of the Hugging Face hub to its cache, with the revision pinned.

huggingface_hub's own variables configure the hub and the token for gated models: HF_ENDPOINT, HF_HOME, HF_TOKEN,
HF_HUB_OFFLINE.
"""

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from yaml import YAMLError

from dragoman_export.errors import ExportError
from dragoman_server.runtime.device import first_line

REPOSITORY = re.compile(r"[\w.-]+(/[\w.-]+)?")
TEXT_FILES = ("*.json", "*.txt", "*.model", "*.spm", "*.bpe", "README.md")
# Formats of weights; only the first one in a repository is downloaded.
WEIGHTS = (
    ("model.safetensors.index.json", ("model-*.safetensors",)),
    ("model.safetensors", ("model.safetensors",)),
    ("pytorch_model.bin.index.json", ("pytorch_model-*.bin",)),
    ("pytorch_model.bin", ("pytorch_model.bin",)),
)


@dataclass(frozen=True)
class Origin:
    """The origin of a model.

    Attributes:
        name: Repository, such as "Helsinki-NLP/opus-mt-de-en"; the directory's name for one on disk.
        revision: Commit of the repository; empty for a directory.
        license: License in the model card; empty if it names none.
        card: Address of the model card; empty for a directory.
    """

    name: str
    revision: str = ""
    license: str = ""
    card: str = ""


def resolve(model: str, revision: str | None = None) -> tuple[Path, Origin]:
    """Returns the directory of a model, downloading it if necessary.

    Args:
        model: A directory, or a repository of the hub.
        revision: Branch, tag or commit; the default branch's newest commit if None.

    Raises:
        ExportError: There is no such directory or repository, it is gated, it has no weights, or the hub can't be
            reached and the model is not in the cache.
    """
    folder = Path(model)
    if folder.is_dir():
        if revision is not None:
            raise ExportError(f"--revision is for models of the hub, but {model} is a directory")
        return folder, Origin(folder.resolve().name, license=_license(_card_data(folder / "README.md")))
    if folder.exists() or folder.is_symlink():
        raise ExportError(f"{model}: is not a directory; expected the one that holds config.json and the weights")
    if not REPOSITORY.fullmatch(model):
        raise ExportError(f"{model}: neither a directory nor the name of a model on the hub (owner/name)")
    return _download(model, revision)


def _download(name: str, revision: str | None) -> tuple[Path, Origin]:
    try:
        from huggingface_hub import HfApi, constants, errors, snapshot_download
    except ModuleNotFoundError:
        sentence = f"{name}: no such directory, and huggingface_hub, which would download it, is not installed"
        raise ExportError(f"{sentence}; `pip install '.[import]'` in a clone of Dragoman installs it") from None
    try:
        if constants.is_offline_mode():
            cached = _cached(name, revision)
            return cached, Origin(name, cached.name, card=_card(name))
        info = HfApi().model_info(name, revision=revision)
        files = [sibling.rfilename for sibling in info.siblings or ()]
        # Under the given name, so that the cache can resolve it again without the hub.
        path = snapshot_download(name, revision=revision, allow_patterns=[*TEXT_FILES, *_weights(name, files)])
    except errors.HFValidationError:
        raise ExportError(f"{name}: neither a directory nor the name of a model on the hub (owner/name)") from None
    except errors.GatedRepoError:
        page = f"{constants.ENDPOINT}/{name}"
        raise ExportError(f"{name}: the model is gated; accept its terms at {page} and set HF_TOKEN") from None
    except errors.RevisionNotFoundError:
        raise ExportError(f"{name}: the repository has no revision {revision!r}") from None
    except errors.RepositoryNotFoundError:
        raise ExportError(f"{name}: no such directory, and no such model on {constants.ENDPOINT}") from None
    except errors.LocalEntryNotFoundError:
        sentence = f"{name}: the model is not in the cache ({constants.HF_HUB_CACHE}), and the hub can't be reached"
        raise ExportError(sentence) from None
    except (errors.HfHubHTTPError, OSError) as error:
        raise ExportError(f"{name}: can't be downloaded from {constants.ENDPOINT}: {first_line(error)}") from None
    except Exception as error:  # the HTTP library raises various types
        if type(error).__module__.partition(".")[0] not in ("httpx", "httpx2", "httpcore", "requests"):
            raise
        raise ExportError(f"{name}: {constants.ENDPOINT} can't be reached: {first_line(error)}") from None
    return Path(path), Origin(name, Path(path).name, _license(info.card_data), _card(name))


def _cached(name: str, revision: str | None) -> Path:
    """Returns the directory in the cache; raises LocalEntryNotFoundError if it is incomplete."""
    from huggingface_hub import errors, snapshot_download

    for present, patterns in WEIGHTS:
        allowed = [*TEXT_FILES, *patterns]
        with suppress(errors.IncompleteSnapshotError):
            path = Path(snapshot_download(name, revision=revision, local_files_only=True, allow_patterns=allowed))
            if (path / present).exists():
                return path
    raise errors.LocalEntryNotFoundError(name)


def _weights(name: str, files: Sequence[str]) -> Sequence[str]:
    for present, patterns in WEIGHTS:
        if present in files:
            return patterns
    raise ExportError(f"{name}: the repository has neither safetensors nor pytorch_model.bin")


def _card_data(card: Path) -> Any:
    """Returns the metadata of a model card on disk; None if there is no card or its metadata is damaged."""
    from huggingface_hub.repocard import metadata_load

    try:
        return metadata_load(card) if card.is_file() else None
    except (OSError, ValueError, YAMLError):
        return None


def _license(card: Any) -> str:
    found = card.get("license") if card is not None else None
    return ", ".join(map(str, found)) if isinstance(found, list) else str(found or "")


def _card(name: str) -> str:
    from huggingface_hub import constants

    return f"{constants.ENDPOINT}/{name}"
