"""TLS and API keys as configured, and metrics about their files."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import structlog
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from dragoman_server.config import ServerConfig
from dragoman_server.core.errors import StartError
from dragoman_server.security.keys import ApiKeys
from dragoman_server.security.tls import Tls
from dragoman_server.security.watched_files import FileError, WatchedFiles

log = structlog.get_logger()


@dataclass(frozen=True)
class Access(Collector):
    """TLS and API keys of a server.

    Attributes:
        tls: The certificates; None for plaintext.
        keys: The API keys; None to let everyone in.
    """

    tls: Tls | None = None
    keys: ApiKeys | None = None

    @property
    def files(self) -> list[WatchedFiles[Any]]:
        """The files to watch for changes."""
        return [source.files for source in (self.tls, self.keys) if source is not None]

    def collect(self) -> Iterable[Metric]:
        if self.files:
            text = "1 if changed files can't be used, so the previous ones stay in use"
            unusable = GaugeMetricFamily("dragoman_files_unusable", text, labels=["files"])
            for files in self.files:
                unusable.add_metric([files.name], files.problem is not None)
            yield unusable
        if self.tls is not None and self.tls.expires is not None:
            text = "When the certificate of the gRPC port expires, in seconds since 1970"
            yield GaugeMetricFamily("dragoman_certificate_end_timestamp_seconds", text, value=self.tls.expires)


def read_access(config: ServerConfig) -> Access:
    """Reads the configured files. Raises StartError if one can't be used."""
    paths = {
        "--tls-cert": config.tls_cert,
        "--tls-key": config.tls_key,
        "--tls-client-ca": config.tls_client_ca,
        "--api-keys": config.api_keys,
    }
    try:
        tls = None
        if config.tls_cert is not None and config.tls_key is not None:
            tls = Tls(config.tls_cert, config.tls_key, config.tls_client_ca)
        keys = None if config.api_keys is None else ApiKeys(config.api_keys)
    except FileError as error:
        # The message contains a path, which two options may share, or both paths of a pair that does not match.
        options = [name for name, path in paths.items() if path is not None and f" {path} " in f" {error} "]
        raise StartError(f"{error} ({', '.join(options)})") from None
    if keys is not None and not keys.files.value:
        log.warning("the API key file has no keys, so every call is refused", file=str(config.api_keys))
    if keys is not None and tls is None:
        log.warning("without TLS, anyone who can listen on the network can read the API keys")
    return Access(tls, keys)
