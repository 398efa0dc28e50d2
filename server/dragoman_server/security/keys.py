"""API keys: how they are generated, the file that lists them, and the limits of each key.

A line of the file has a key's name, its hash and, optionally, its limits and permissions:

    speech-team  sha256:2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae  per_second=50 at_once=8
    operations   sha256:fcde2b2edba56bf408601fb721fe9b5c338d10ee429ea04fae5511b68fbf8fb9  admin

The hash is plain SHA-256. A slow hash such as scrypt protects secrets that people choose. A key has 256 bits from the
system's generator, which nobody can guess at any speed. A slow hash would run at every call, for invented keys too, and
let anyone keep the server busy.
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

PREFIX = "dgm_"  # lets scanners for leaked secrets recognize a key
KEY_BYTES = 32
SCHEME = "sha256:"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
ADMIN = "admin"
DIGEST_PREFIX = 8  # bytes of the hash by which an entry is looked up
# Delay before a retry while too many calls are running: about the duration of a call.
BUSY_SECONDS = 0.25


@dataclass(frozen=True, slots=True)
class Entry:
    """A line of the file.

    Attributes:
        name: Name of the key's owner, for metrics and logs.
        digest: SHA-256 of the key.
        per_second: Average number of requests per second. As many may arrive at once after a second without any. None
            for no limit.
        at_once: Number of concurrent calls; None for no limit.
        admin: Whether the key may load and unload models.
    """

    name: str
    digest: bytes
    per_second: float | None = None
    at_once: int | None = None
    admin: bool = False

    def line(self) -> str:
        """Returns the entry as a line of the file."""
        words = [self.name, SCHEME + self.digest.hex()]
        if self.per_second is not None:
            words.append(f"per_second={self.per_second:g}")
        if self.at_once is not None:
            words.append(f"at_once={self.at_once}")
        if self.admin:
            words.append(ADMIN)
        return "  ".join(words)


class OverLimitError(Exception):
    """A limit of an API key is reached; the message says which.

    Attributes:
        reason: The limit, for programs: KEY_CALLS or KEY_RATE.
        retry_after: Seconds until a retry may succeed.
    """

    def __init__(self, message: str, reason: str, retry_after: float) -> None:
        super().__init__(message)
        self.reason, self.retry_after = reason, retry_after


class Caller:
    """The current use of a key. Not thread-safe: for the event loop only.

    Attributes:
        entry: The key's entry in the file.
        running: Number of running calls.
    """

    def __init__(self, entry: Entry, clock: Callable[[], float]) -> None:
        self.entry = entry
        self.running = 0
        self._clock = clock
        self._credit = self._max_credit
        self._updated = clock()

    @property
    def _max_credit(self) -> float:
        return max(1.0, self.entry.per_second or 1.0)

    def begin(self, requests: int) -> None:
        """Starts a call; `end` must follow.

        Args:
            requests: Number of requests that the call counts as. A batch above the rate is let in if a single request
                would be; later calls are refused until that debt is paid off.

        Raises:
            OverLimitError: a limit of the key is reached.
        """
        entry = self.entry
        if entry.at_once is not None and self.running >= entry.at_once:
            calls = "call" if entry.at_once == 1 else "calls"
            raise OverLimitError(
                f"this API key is limited to {entry.at_once} {calls} at once", "KEY_CALLS", BUSY_SECONDS
            )
        if wait := self.charge(requests):
            raise OverLimitError(
                f"this API key is limited to {entry.per_second:g} requests per second", "KEY_RATE", wait
            )
        self.running += 1

    def charge(self, requests: int) -> float:
        """Counts requests if the rate allows one now. Returns 0 if so, else the seconds until it does."""
        rate = self.entry.per_second
        if rate is None:
            return 0.0
        now = self._clock()
        self._credit = min(self._max_credit, self._credit + (now - self._updated) * rate)
        self._updated = now
        # Slightly below 1, so that rounding does not refuse a client that retries exactly after the delay.
        if self._credit < 1 - 1e-6:
            return (1 - self._credit) / rate
        self._credit -= requests
        return 0.0

    def end(self) -> None:
        """Ends a call."""
        self.running -= 1


class ApiKeys:
    """The known keys. A change of the file takes effect at the next call and keeps the counts of each key.

    Args:
        path: The file of keys.
        clock: The time in seconds.

    Raises:
        FileError: the file can't be used.
    """

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._callers: dict[bytes, Caller] = {}
        self._entries: tuple[Entry, ...] = ()
        self.files: WatchedFiles[tuple[Entry, ...]] = WatchedFiles(
            "API keys", [path], lambda contents: read_entries(contents[0], str(path))
        )

    def caller(self, key: str) -> Caller | None:
        """Returns the caller with a key; None for an unknown key.

        Timing reveals nothing: the lookup uses a hash that nobody can choose, and the comparison is constant-time.
        """
        if self._entries is not self.files.value:
            self._update_callers(self.files.value)
        digest = digest_of(key)
        caller = self._callers.get(digest[:DIGEST_PREFIX])
        return caller if caller is not None and hmac.compare_digest(caller.entry.digest, digest) else None

    def _update_callers(self, entries: tuple[Entry, ...]) -> None:
        callers = {}
        for entry in entries:
            caller = self._callers.get(entry.digest[:DIGEST_PREFIX]) or Caller(entry, self._clock)
            caller.entry = entry
            callers[entry.digest[:DIGEST_PREFIX]] = caller
        self._callers, self._entries = callers, entries


def digest_of(key: str) -> bytes:
    """Returns the SHA-256 of a key."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def new_key() -> str:
    """Generates a key."""
    return PREFIX + secrets.token_urlsafe(KEY_BYTES)


def read_entries(content: bytes, name: str) -> tuple[Entry, ...]:
    """Parses a file of keys; skips empty lines and those that start with #.

    Args:
        name: Name of the file, for the error.

    Raises:
        FileError: a line is invalid, or two have the same name or key. The error does not quote the line.
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
                raise ValueError("repeats the name of an earlier line")
            if any(entry.digest[:DIGEST_PREFIX] == other.digest[:DIGEST_PREFIX] for other in entries):
                raise ValueError("repeats the key of an earlier line")
        except ValueError as error:
            raise FileError(f"line {number} of {name} {error}") from None
        entries.append(entry)
    return tuple(entries)


def read_entry(words: list[str]) -> Entry:
    """Parses the words of a line. Raises ValueError with a predicate of the line: "must begin with a name"."""
    name, *rest = words
    if not NAME.fullmatch(name):
        raise ValueError("must begin with a name of at most 64 letters, digits, dots, dashes and underscores")
    digest = rest[0].removeprefix(SCHEME) if rest and rest[0].startswith(SCHEME) else ""
    if not re.fullmatch("[0-9a-f]{64}", digest):
        raise ValueError(
            f"must have {SCHEME} and 64 hexadecimal digits after the name, "
            "as `python -m dragoman_server.new_key` writes them"
        )
    limits: dict[str, float] = {}
    admin = ADMIN in rest[1:]
    for word in rest[1:]:
        if word == ADMIN:
            continue
        limit, _, value = word.partition("=")
        if limit not in ("per_second", "at_once"):
            raise ValueError("may have only per_second=N, at_once=N and admin after the hash")
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
