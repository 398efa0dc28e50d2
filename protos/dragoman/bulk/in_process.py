"""Engines in this process. Only the package of the server has them, which the client does not depend on."""

from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from dragoman.bulk.backend import Backend
from dragoman.bulk.errors import BulkError
from dragoman.bulk.text_lines import never
from dragoman.requests import GenerateOptions, request_fields, source_message

MODULE = "dragoman_server.offline.backend"


def open_bundle(
    bundle: Path,
    options: GenerateOptions,
    machine: Mapping[str, Any] | None = None,
    cores: int | None = None,
    should_stop: Callable[[], bool] = never,
) -> Backend:
    """Loads a bundle into this process.

    Args:
        bundle: Directory of the bundle.
        options: GenerateOptions; the model and the priority do not count.
        machine: Options of `dragoman-serve` for its engines, such as "device" and "max_rows".
        cores: CPU cores that the engines may use; None for all of this process.
        should_stop: Whether the work should stop.

    Raises:
        BulkError: The extra `server` is not installed; or the bundle, the device or an option can't be used.
        ValueError: An option does not fit its field.
    """
    fields, languages = request_fields(**options)["options"], source_message("", options)
    languages.ClearField("text")
    try:
        module = import_module(MODULE)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("dragoman_server."):
            raise
        raise BulkError(
            f"a bundle needs the server's libraries, and {error.name} is not installed; `pip install '.[server]'` in a "
            "clone of Dragoman installs it; or name servers with --address"
        ) from None
    backend: Backend = module.InProcess(bundle, fields, languages, machine or {}, cores, should_stop)
    return backend
