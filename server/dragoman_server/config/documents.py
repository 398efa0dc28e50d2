"""YAML files that people write: what YAML would take in silence for something else is refused, at any depth."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

NULL = "tag:yaml.org,2002:null"
_NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
# Numbers of YAML 1.1 that few people know: 010 is eight there, 0b11 three, 1_0 ten, and 12:30 is 750, as in hours and
# minutes. 1_000 is what it looks like.
_MISREAD = re.compile(
    r"[-+]?(0[0-7_]*[0-7]|0b[01_]+|[0-9][0-9_]*:[0-9:._]*|(?![1-9][0-9]{0,2}(_[0-9]{3})+$)[0-9]+_[0-9_]*)"
)


class DocumentError(Exception):
    """The file can't be taken; the message says why in one sentence, which begins with the file and the line."""


class Document:
    """A YAML file, parsed.

    Args:
        path: of the file, in UTF-8.

    Attributes:
        root: None where there is nothing but comments.

    Raises:
        OSError: it can't be read.
        DocumentError: it is not YAML, a key stands in it twice, or a number is not what it looks like.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        content = path.read_bytes()
        with self._told():
            self._loader = yaml.SafeLoader(content.decode("utf-8-sig"))
            self.root: yaml.Node | None = self._loader.get_single_node()
            if self.root is not None and self.root.tag == NULL:
                self.root = None
            if self.root is not None:
                self._refuse_pitfalls(self.root, "it", set())

    def value(self, node: yaml.Node | None) -> Any:
        """What YAML makes of a node; None for none.

        Raises:
            DocumentError: there is no such value.
        """
        with self._told():
            return None if node is None else self._loader.construct_object(node, deep=True)

    def place(self, node: yaml.Node) -> str:
        """Where it stands: "server.yaml:12"."""
        return f"{self._path}:{node.start_mark.line + 1}"

    def _refuse_pitfalls(self, node: yaml.Node, name: str, seen: set[yaml.Node]) -> None:
        """Args:
        name: of what the node is the value of, "models.g2p-en".
        seen: nodes that were looked at; an alias stands for one of them.
        """
        if node in seen:
            return
        seen.add(node)
        if isinstance(node, yaml.SequenceNode):
            for each in node.value:
                self._refuse_pitfalls(each, name, seen)
        elif isinstance(node, yaml.MappingNode):
            first: dict[tuple[str, str], yaml.Node] = {}
            for key, value in node.value:
                told = name
                if isinstance(key, yaml.ScalarNode):
                    told = key.value if node is self.root else f"{name}.{key.value}"
                    told = told if told.isprintable() else ascii(told)
                    before = first.setdefault((key.tag, key.value), key)
                    if before is not key:
                        problem = f"{told} stands there a second time, after {self.place(before)}"
                        raise DocumentError(f"{self.place(key)}: {problem}")
                self._refuse_pitfalls(key, name, seen)
                self._refuse_pitfalls(value, told, seen)
        elif node.tag in _NUMBERS and _MISREAD.fullmatch(node.value):
            value = self.value(node)
            read = f'{node.value}, which YAML takes for {value}; write {value}, or "{node.value}" for text'
            raise DocumentError(f"{self.place(node)}: {name} is {read}")

    @contextmanager
    def _told(self) -> Iterator[None]:
        """What the parser says, as a sentence."""
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
