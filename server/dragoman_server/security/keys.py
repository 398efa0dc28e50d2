"""API keys: how they are made, how the file that lists them is read, and who of its callers may call now.

A line of the file is a key's name, its hash, and what it may do; all but the first two may be left out:

    speech-team  sha256:2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae  per_second=50 at_once=8
    operations   sha256:fcde2b2edba56bf408601fb721fe9b5c338d10ee429ea04fae5511b68fbf8fb9  admin

The hash is plain SHA-256. A slow one (scrypt) makes guessing hard where people choose what is hashed; a key has 256
bits from the system's generator, which nobody guesses at any speed, and a slow hash would be paid at every call, also
by whoever sends made-up keys in order to keep the server busy.
"""

import hashlib
import hmac
import re
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from dragoman_server.security.watched_files import FileError, WatchedFiles

PREFIX = "dgm_"  # by which scanners for leaked secrets know a key
KEY_BYTES = 32
SCHEME = "sha256:"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
ADMIN = "admin"
SPREAD = 8  # bytes of the hash by which an entry is found
# After which to try again where too many calls run: about what one takes.
BUSY_SECONDS = 0.25


@dataclass(frozen=True, slots=True)
class Entry:
    """A line of the file.

    Attributes:
        name: of who holds the key; for metrics and logs.
        digest: the key's SHA-256.
        per_second: requests, in the long run; as many may come at once after a quiet second. None for no limit.
        at_once: calls that run. None for no limit.
        admin: it may load and unload models.
    """

    name: str
    digest: bytes
    per_second: float | None = None
    at_once: int | None = None
    admin: bool = False

    def line(self) -> str:
        words = [self.name, SCHEME + self.digest.hex()]
        if self.per_second is not None:
            words.append(f"per_second={self.per_second:g}")
        if self.at_once is not None:
            words.append(f"at_once={self.at_once}")
        if self.admin:
            words.append(ADMIN)
        return "  ".join(words)


class OverLimitError(Exception):
    """A key's limit is reached; the message says which.

    Attributes:
        reason: the same for programs.
        retry_after: seconds after which there may be room.
    """

    def __init__(self, message: str, reason: str, retry_after: float) -> None:
        super().__init__(message)
        self.reason, self.retry_after = reason, retry_after


class Caller:
    """Who holds a key, and what that key uses now. For the event loop alone."""

    def __init__(self, entry: Entry, clock: Callable[[], float]) -> None:
        self.entry = entry
        self.running = 0
        self._clock = clock
        self._credit = self._most
        self._counted = clock()

    @property
    def _most(self) -> float:
        return max(1.0, self.entry.per_second or 1.0)

    def begin(self, requests: int) -> None:
        """A call begins; `end` must follow.

        Args:
            requests: that it stands for. A batch of more than the rate allows is let in where a single one would be;
                what comes behind it waits until that is paid off.

        Raises:
            OverLimitError: the key has had its share.
        """
        entry = self.entry
        if entry.at_once is not None and self.running >= entry.at_once:
            calls = "call" if entry.at_once == 1 else "calls"
            raise OverLimitError(f"this API key may have {entry.at_once} {calls} at once", "KEY_CALLS", BUSY_SECONDS)
        if wait := self.charge(requests):
            raise OverLimitError(f"this API key may send {entry.per_second:g} requests per second", "KEY_RATE", wait)
        self.running += 1

    def charge(self, requests: int) -> float:
        """Counts requests where the rate allows one now; gives 0 then, or else the seconds until it does."""
        rate = self.entry.per_second
        if rate is None:
            return 0.0
        now = self._clock()
        self._credit = min(self._most, self._credit + (now - self._counted) * rate)
        self._counted = now
        # Not quite 1: who comes back exactly when told to must not be sent away by a rounding.
        if self._credit < 1 - 1e-6:
            return (1 - self._credit) / rate
        self._credit -= requests
        return 0.0

    def end(self) -> None:
        self.running -= 1


class ApiKeys:
    """The keys that are let in. A change of the file holds from the next call; what a key has used is not forgotten.

    Raises:
        FileError: the file can't be used.
    """

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._callers: dict[bytes, Caller] = {}
        self._known: tuple[Entry, ...] = ()
        self.files: WatchedFiles[tuple[Entry, ...]] = WatchedFiles(
            "API keys", [path], lambda contents: read_entries(contents[0], str(path))
        )

    def caller(self, key: str) -> Caller | None:
        """Whose key it is; None where it is nobody's.

        How long this takes tells nothing: the entry is found by a hash that nobody can steer, and then compared in
        constant time.
        """
        if self._known is not self.files.value:
            self._take_over(self.files.value)
        digest = digest_of(key)
        caller = self._callers.get(digest[:SPREAD])
        return caller if caller is not None and hmac.compare_digest(caller.entry.digest, digest) else None

    def _take_over(self, entries: tuple[Entry, ...]) -> None:
        callers = {}
        for entry in entries:
            caller = self._callers.get(entry.digest[:SPREAD]) or Caller(entry, self._clock)
            caller.entry = entry
            callers[entry.digest[:SPREAD]] = caller
        self._callers, self._known = callers, entries


def digest_of(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def new_key() -> str:
    return PREFIX + secrets.token_urlsafe(KEY_BYTES)


def read_entries(content: bytes, name: str) -> tuple[Entry, ...]:
    """The entries of a file; empty lines and those that start with # are skipped.

    Args:
        name: the file's, for the error.

    Raises:
        FileError: a line is wrong, or two have the same name or key. It does not quote the line.
    """
    entries: list[Entry] = []
    try:
        lines = content.decode().splitlines()
    except UnicodeDecodeError:
        raise FileError(f"{name} is not UTF-8") from None
    for number, line in enumerate(lines, start=1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        try:
            entry = read_entry(words)
            if any(entry.name == other.name for other in entries):
                raise ValueError("has the name of a line above it")
            if any(entry.digest[:SPREAD] == other.digest[:SPREAD] for other in entries):
                raise ValueError("has the key of a line above it")
        except ValueError as error:
            raise FileError(f"line {number} of {name} {error}") from None
        entries.append(entry)
    return tuple(entries)


def read_entry(words: list[str]) -> Entry:
    """The entry of a line. Raises ValueError, to be read after the line's number."""
    name, *rest = words
    if not NAME.fullmatch(name):
        raise ValueError("must begin with a name of at most 64 letters, digits, dots, dashes and underscores")
    digest = rest[0].removeprefix(SCHEME) if rest and rest[0].startswith(SCHEME) else ""
    if not re.fullmatch("[0-9a-f]{64}", digest):
        raise ValueError(
            f"must have {SCHEME} and 64 hexadecimal digits behind the name, "
            "as `python -m dragoman_server.new_key` writes them"
        )
    limits: dict[str, float] = {}
    admin = ADMIN in rest[1:]
    for word in rest[1:]:
        if word == ADMIN:
            continue
        limit, _, value = word.partition("=")
        if limit not in ("per_second", "at_once"):
            raise ValueError("may have nothing but per_second=N, at_once=N and admin behind the hash")
        limits[limit] = _number(limit, value)
    at_once = limits.get("at_once")
    if at_once is not None and not at_once.is_integer():
        raise ValueError("must have a whole number in at_once=")
    return Entry(
        name, bytes.fromhex(digest), limits.get("per_second"), None if at_once is None else int(at_once), admin
    )


def _number(limit: str, text: str) -> float:
    if not re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", text) or not float(text) > 0:
        raise ValueError(f"must have a number above 0 in {limit}=")
    return float(text)
