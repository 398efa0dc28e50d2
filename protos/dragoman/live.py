"""What a server tells of its last minutes at its metrics port, over plain HTTP."""

import http.client
import json
import urllib.error
import urllib.parse
from typing import Any

from dragoman.proxies import open_url, variable_for_url

DEFAULT_ADDRESS = "127.0.0.1:9090"
TIMEOUT_SECONDS = 5.0

Told = dict[str, Any]
"""What /live.json says: of which models, since when, its `points` in the order of time, and `totals`."""
NEEDED = {"kept_seconds", "model", "models", "now", "points", "started", "totals"}


class LiveError(Exception):
    """The server tells nothing; the message is one sentence."""


class Live:
    """The last minutes of one server, which are asked for piece by piece.

    Args:
        address: HOST:PORT of the metrics port, or an http:// or https:// address in front of it.
        model: NAME@VERSION, or NAME where one version of it is served; "" for all models together.
    """

    def __init__(self, address: str, model: str = "") -> None:
        self.address = address.removeprefix("http://").rstrip("/")
        self._url = f"{address.rstrip('/') if '://' in address else f'http://{address}'}/live.json"
        self._model = model
        self._told: Told | None = None

    def ask(self) -> Told:
        """All that is known by now.

        Raises:
            LiveError: the server can't be reached, is none of ours, or has no such model.
        """
        try:
            told = self._get()
            if self._model and told["model"] != self._model:
                self._model = self._named(told)
                told = self._get()
        except urllib.error.HTTPError as error:
            if error.code == http.HTTPStatus.NOT_FOUND and self._model:
                raise LiveError(f"{self.address} serves no model {self._model}") from None
            raise LiveError(self._reason(error)) from None
        except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError) as error:
            raise LiveError(self._reason(error)) from None
        self._told = told
        return told

    def _get(self) -> Told:
        """Asks for what is new, and puts it behind what is known; a server that was started anew has a new story."""
        known = self._told
        query = {"model": self._model if "@" in self._model else ""}
        if known is not None and known["points"] and known["model"] == query["model"]:
            query["after"] = known["points"][-1]["time"]
        with open_url(f"{self._url}?{urllib.parse.urlencode(query)}", TIMEOUT_SECONDS) as answer:
            told: Told = json.load(answer)
        if not isinstance(told, dict) or not told.keys() >= NEEDED:
            raise ValueError("not what /live.json says")
        if "after" in query and known is not None:
            if known["started"] != told["started"]:
                self._told = None
                return self._get()
            first = told["now"] - told["kept_seconds"]
            told["points"] = [point for point in known["points"] if point["time"] > first] + told["points"]
        return told

    def _named(self, told: Told) -> str:
        """The one version that is served of a model."""
        names = [model["name"] for model in told["models"]]
        found = [name for name in names if name.partition("@")[0] == self._model]
        if len(found) == 1:
            return str(found[0])
        if found:
            raise LiveError(f"{self.address} serves {' and '.join(found)}: choose one")
        there = f"; it serves {', '.join(names)}" if names else ""
        raise LiveError(f"{self.address} serves no model {self._model}{there}")

    def _reason(self, error: Exception) -> str:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        if (proxy := variable_for_url(self._url)) is not None:
            said = f"HTTP status {error.code}" if isinstance(error, urllib.error.HTTPError) else self._failure(reason)
            way = f"{self.address} can't be reached through the proxy that {proxy} names"
            return f"{way}: {said or 'no such answer came back'}; list the host in no_proxy to go there without it"
        if isinstance(reason, TimeoutError):
            return f"{self.address} does not answer within {TIMEOUT_SECONDS:.0f} s"
        if isinstance(reason, ConnectionRefusedError):
            return f"no server listens at {self.address}; its metrics port is what --metrics-port says, 9090 by default"
        if failure := self._failure(reason):
            return f"{self.address} can't be reached: {failure}"
        return f"{self.address} answers, but is not the metrics port of a Dragoman server"

    def _failure(self, reason: object) -> str:
        """What the system says of a connection that failed; nothing where it did not."""
        if isinstance(reason, OSError) and not isinstance(reason, (http.client.HTTPException, urllib.error.HTTPError)):
            return reason.strerror or str(reason)
        return ""
