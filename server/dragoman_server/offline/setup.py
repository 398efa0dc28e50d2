"""What a process needs that runs engines without a server."""

import os
import sys
from typing import Any

from pydantic import ValidationError

from dragoman_server.config import ServerConfig
from dragoman_server.telemetry.logs import configure_logs

MAX_BEAM_SIZE = 256
SWITCH_SECONDS = 0.0005  # after which an engine gets the interpreter's lock back


def prepare_process() -> None:
    """Leaves the cores of this process to its engines, and its standard error to errors."""
    # NOTE: the tokenizers' threads would take the engines' cores.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    sys.setswitchinterval(SWITCH_SECONDS)
    # Not final: in an actor or another process of theirs, users may configure logs later.
    configure_logs("console", "error", final=False)


def offline_config(**options: Any) -> ServerConfig:
    """Returns the server's options for engines without a server, whose requests are those of one user.

    Args:
        options: Options by name; None for the default.

    Raises:
        ValueError: An option can't be used; the message starts with its flag.
    """
    limits = {"max_beam_size": MAX_BEAM_SIZE, "max_hypotheses": MAX_BEAM_SIZE}
    try:
        return ServerConfig.model_validate({**options, **limits})
    except ValidationError as error:
        first = error.errors()[0]
        flag = str(first["loc"][0]).replace("_", "-") if first["loc"] else ""
        raise ValueError(f"--{flag}: {first['msg']}" if flag else first["msg"]) from None
