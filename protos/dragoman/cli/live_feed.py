"""Reads /live.json of a server's metrics port, plain HTTP: its state and measurements of the last minutes."""

import http.client
import json
import urllib.error
import urllib.parse
from typing import Any

from dragoman.proxies import open_url, proxy_variable_for_url

TIMEOUT_SECONDS = 5.0

Snapshot = dict[str, Any]
"""The content of /live.json: models, start time, `points` in order of time, and `totals`."""
_REQUIRED = {"kept_seconds", "model", "models", "now", "points", "started", "totals"}


class LiveError(Exception):
    """The server's measurements cannot be read; str() is one sentence."""


class LiveFeed:
    """The measurements of one server. Each request fetches only the points that are new.

    Args:
        address: HOST:PORT of the metrics port, or an http:// or https:// URL in front of it.
        model: NAME@VERSION, or NAME if one version of it is served; "" for all models together.
    """

    def __init__(self, address: str, model: str = "") -> None:
        self.address = address.removeprefix("http://").rstrip("/")
        self._url = f"{address.rstrip('/') if '://' in address else f'http://{address}'}/live.json"
        self._model = model
        self._snapshot: Snapshot | None = None

    def fetch(self) -> Snapshot:
        """Returns everything known now.

        Raises:
            LiveError: The server cannot be reached, is not a Dragoman server, or has no such model.
        """
        try:
            snapshot = self._get()
            if self._model and snapshot["model"] != self._model:
                self._model = self._resolve(snapshot)
                snapshot = self._get()
        except urllib.error.HTTPError as error:
            if error.code == http.HTTPStatus.NOT_FOUND and self._model:
                raise LiveError(f"{self.address} serves no model {self._model}") from None
            raise LiveError(self._reason(error)) from None
        except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError) as error:
            raise LiveError(self._reason(error)) from None
        self._snapshot = snapshot
        return snapshot

    def _get(self) -> Snapshot:
        """Fetches the new points and appends them to the known ones, which a restarted server does not continue."""
        known = self._snapshot
        query = {"model": self._model if "@" in self._model else ""}
        if known is not None and known["points"] and known["model"] == query["model"]:
            query["after"] = known["points"][-1]["time"]
        with open_url(f"{self._url}?{urllib.parse.urlencode(query)}", TIMEOUT_SECONDS) as answer:
            snapshot: Snapshot = json.load(answer)
        if not isinstance(snapshot, dict) or not snapshot.keys() >= _REQUIRED:
            raise ValueError("not the content of /live.json")
        if "after" in query and known is not None:
            if known["started"] != snapshot["started"]:
                self._snapshot = None
                return self._get()
            oldest = snapshot["now"] - snapshot["kept_seconds"]
            snapshot["points"] = [point for point in known["points"] if point["time"] > oldest] + snapshot["points"]
        return snapshot

    def _resolve(self, snapshot: Snapshot) -> str:
        """Returns the NAME@VERSION of the only version of the model."""
        names = [model["name"] for model in snapshot["models"]]
        found = [name for name in names if name.partition("@")[0] == self._model]
        if len(found) == 1:
            return str(found[0])
        if found:
            raise LiveError(f"{self.address} serves {' and '.join(found)}: choose one")
        others = f"; it serves {', '.join(names)}" if names else ""
        raise LiveError(f"{self.address} serves no model {self._model}{others}")

    def _reason(self, error: Exception) -> str:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        if (proxy := proxy_variable_for_url(self._url)) is not None:
            status = f"HTTP status {error.code}" if isinstance(error, urllib.error.HTTPError) else ""
            cause = status or _system_error(reason) or "its answer is invalid"
            failure = f"{self.address} can't be reached through the proxy in {proxy}: {cause}"
            return f"{failure}; add the host to no_proxy to bypass the proxy"
        if isinstance(reason, TimeoutError):
            return f"{self.address} does not answer within {TIMEOUT_SECONDS:.0f} s"
        if isinstance(reason, ConnectionRefusedError):
            return f"no server listens at {self.address}; the metrics port is set by --metrics-port, by default 9090"
        if cause := _system_error(reason):
            return f"{self.address} can't be reached: {cause}"
        return f"{self.address} answers, but is not the metrics port of a Dragoman server"


def _system_error(reason: object) -> str:
    """Returns the system's message for a failed connection; "" if the connection did not fail."""
    if isinstance(reason, OSError) and not isinstance(reason, (http.client.HTTPException, urllib.error.HTTPError)):
        return reason.strerror or str(reason)
    return ""
