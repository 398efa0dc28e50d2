"""What `dragoman-distill` is asked to do."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dragoman.bulk.text_lines import FileDigest
from dragoman_server.distill.choose import Choice
from dragoman_server.distill.teacher import SearchWishes
from dragoman_server.offline.model import identify
from dragoman_server.offline.sources import Layout

WINDOW = 4096


@dataclass(frozen=True, slots=True)
class DistillOptions:
    """The command line.

    Attributes:
        teachers: Directories of bundles.
        sources: A file of sources, or a recipe.
        out: File to write.
        search: How each teacher searches.
        choose: How the best candidate is found.
        keep: Lines to write for each source, at most.
        swap: Whether to write target<TAB>source, for back-translation.
        tag: Text before the first column; empty for none.
        source_language, target_language: Codes for teachers with several languages.
        layout, source_column, reference_column: See `find_sources`.
        window: Sources that are sorted by length together, and saved together.
        restart: Whether to start over even if OUT was begun before.
    """

    teachers: Sequence[Path]
    sources: Path
    out: Path
    search: SearchWishes = field(default_factory=SearchWishes)
    choose: Choice = "score"
    keep: int = 1
    swap: bool = False
    tag: str = ""
    source_language: str | None = None
    target_language: str | None = None
    layout: Layout = "auto"
    source_column: int = 1
    reference_column: int = 2
    window: int = WINDOW
    restart: bool = False

    def configuration(self, digests: Sequence[FileDigest]) -> dict[str, Any]:
        """Returns all that the output depends on, by the names on the command line.

        Raises:
            BulkError: A teacher is not a bundle.
        """
        return {
            "the teachers": ", ".join(map(identify, self.teachers)),
            "the sources": ", ".join(f"{each.path.name} with digest {each.sha256}" for each in digests),
            "--candidates": self.search.candidates,
            "--beam-size": self.search.beam_size,
            "--length-penalty": self.search.length_penalty,
            "--early-stopping": self.search.early_stopping,
            "--max-new-tokens": self.search.max_new_tokens,
            "--choose": self.choose,
            "--keep": self.keep,
            "--swap": self.swap,
            "--tag": self.tag,
            "--source-language": self.source_language,
            "--target-language": self.target_language,
            "--format": self.layout,
            "--source-column": self.source_column,
            "--reference-column": self.reference_column,
            "--window": self.window,
        }
