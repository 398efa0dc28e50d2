"""YAML files that people write; values that YAML silently reads as something else are refused, at any depth."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

NULL = "tag:yaml.org,2002:null"
_NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
# Surprising numbers of YAML 1.1: 010 is eight, 0b11 is three, 1_0 is ten, and 12:30 is 750, as in hours and minutes.
# 1_000 is what it looks like.
_MISREAD = re.compile(
    r"[-+]?(0[0-7_]*[0-7]|0b[01_]+|[0-9][0-9_]*:[0-9:._]*|(?![1-9][0-9]{0,2}(_[0-9]{3})+$)[0-9]+_[0-9_]*)"
)


class DocumentError(Exception):
    """The file is refused; the message is one sentence that begins with the file and the line."""


class Document:
    """A parsed YAML file.

    Args:
        path: A file in UTF-8.

    Attributes:
        root: The root node; None if the file has only comments.

    Raises:
        OSError: The file can't be read.
        DocumentError: It is not YAML, has a key twice, or has a number that is not what it looks like.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        content = path.read_bytes()
        with self._parse_errors():
            self._loader = yaml.SafeLoader(content.decode("utf-8-sig"))
            self.root: yaml.Node | None = self._loader.get_single_node()
            if self.root is not None and self.root.tag == NULL:
                self.root = None
            if self.root is not None:
                self._refuse_pitfalls(self.root, "it", set())

    def value(self, node: yaml.Node | None) -> Any:
        """Returns the value of a node; None for no node.

        Raises:
            DocumentError: The node has no valid value.
        """
        with self._parse_errors():
            return None if node is None else self._loader.construct_object(node, deep=True)

    def place(self, node: yaml.Node) -> str:
        """Returns the position of a node, such as "server.yaml:12"."""
        return f"{self._path}:{node.start_mark.line + 1}"

    def _refuse_pitfalls(self, node: yaml.Node, name: str, seen: set[yaml.Node]) -> None:
        """Refuses duplicate keys and misleading numbers.

        Args:
            name: The path of keys to the node, such as "models.g2p-en".
            seen: Nodes checked before; YAML aliases repeat nodes.
        """
        if node in seen:
            return
        seen.add(node)
        if isinstance(node, yaml.SequenceNode):
            for item in node.value:
                self._refuse_pitfalls(item, name, seen)
        elif isinstance(node, yaml.MappingNode):
            first: dict[tuple[str, str], yaml.Node] = {}
            for key, value in node.value:
                key_name = name
                if isinstance(key, yaml.ScalarNode):
                    key_name = key.value if node is self.root else f"{name}.{key.value}"
                    key_name = key_name if key_name.isprintable() else ascii(key_name)
                    before = first.setdefault((key.tag, key.value), key)
                    if before is not key:
                        problem = f"{key_name} is set twice, first at {self.place(before)}"
                        raise DocumentError(f"{self.place(key)}: {problem}")
                self._refuse_pitfalls(key, name, seen)
                self._refuse_pitfalls(value, key_name, seen)
        elif node.tag in _NUMBERS and _MISREAD.fullmatch(node.value):
            value = self.value(node)
            read = f'{node.value}, which YAML reads as {value}; write {value}, or "{node.value}" for text'
            raise DocumentError(f"{self.place(node)}: {name} is {read}")

    @contextmanager
    def _parse_errors(self) -> Iterator[None]:
        """Turns the parser's errors into DocumentError."""
        try:
            yield
        except UnicodeDecodeError:
            raise DocumentError(f"{self._path} is not text in UTF-8") from None
        except yaml.MarkedYAMLError as error:
            place = f"{self._path}:{error.problem_mark.line + 1}" if error.problem_mark else str(self._path)
            problem = ", ".join(filter(None, (error.context, error.problem)))
            raise DocumentError(f"{place}: this is not YAML: {problem}") from None
        except (yaml.YAMLError, ValueError, RecursionError):
            raise DocumentError(f"{self._path} is not YAML") from None
