"""Token ids, as the command line and files write them."""

from pathlib import Path


def parsed(text: str, name: str) -> list[int]:
    """Ids with spaces or commas between them.

    Raises:
        ValueError: one of them is no integer.
    """
    try:
        return [int(each) for each in text.replace(",", " ").split()]
    except ValueError:
        raise ValueError(f'{name}: expected token ids, as in "5 17", got {text!r}') from None


def listed(file: Path) -> list[int]:
    """The ids that the lines of a file start with; what follows them, as in `dragoman tokenize`, is ignored.

    Raises:
        ValueError: a line starts with something else, or the file cannot be read.
    """
    try:
        lines = file.read_text(encoding="utf-8", errors="replace").split("\n")
    except OSError as error:
        raise ValueError(f"{file} can't be read: {error.strerror}") from None
    ids = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            ids.append(int(line.split()[0]))
        except ValueError:
            raise ValueError(f"{file}, line {number}: expected a token id, got {line.split()[0]!r}") from None
    return ids
