"""Objects of Kubernetes, as helm and kubectl print them."""

from typing import Any

Document = dict[str, Any]


def only(documents: list[Document], kind: str, name: str | None = None) -> Document:
    """The one object of a kind, and of a name."""
    found = [each for each in documents if each["kind"] == kind and name in (None, each["metadata"]["name"])]
    assert len(found) == 1, f"{len(found)} objects {kind} {name or ''}"
    return found[0]
