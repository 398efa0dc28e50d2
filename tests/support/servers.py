"""Servers of g2p-en alone: most tests ask for words, and need not wait until de-en, which also ships, is loaded."""

import os
from pathlib import Path

from dragoman.local import LocalServer
from tests.support.bundles import SHIPPED_G2P


def serving_g2p(*arguments: str | Path) -> tuple[str, ...]:
    """Returns arguments of `dragoman-serve` for g2p-en, unless they or a configuration file name other models."""
    named = "DRAGOMAN_CONFIG" in os.environ or {"--bundle", "--model-repository"} & set(map(str, arguments))
    return (*(() if named else ("--bundle", str(SHIPPED_G2P))), *map(str, arguments))


class G2PServer(LocalServer):
    """A LocalServer of g2p-en, unless its arguments name other models."""

    def __init__(self, *arguments: str, log: Path | None = None, **options: object) -> None:
        super().__init__(*serving_g2p(*arguments), log=log, **options)  # type: ignore[arg-type]
