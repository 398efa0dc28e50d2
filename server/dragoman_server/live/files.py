"""The page that draws the last minutes: plain files beside this one."""

from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).with_name("page")
KINDS = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
# The page asks this server and nobody else, runs no script but its own, and stands in nobody's frame.
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class PageFile(NamedTuple):
    """What is sent for a path."""

    kind: str
    content: bytes


def page_files() -> dict[str, PageFile]:
    """By path, all there are; "/" is the page itself."""
    found = {file.name: PageFile(KINDS[file.suffix], file.read_bytes()) for file in sorted(FOLDER.iterdir())}
    return {"/": found.pop("index.html"), **{f"/{name}": file for name, file in found.items()}}
