"""What the configuration says of who may come in."""

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
    """None for what is not asked for."""

    tls: Tls | None = None
    keys: ApiKeys | None = None

    @property
    def files(self) -> list[WatchedFiles[Any]]:
        """What must be watched."""
        return [each.files for each in (self.tls, self.keys) if each is not None]

    def collect(self) -> Iterable[Metric]:
        if self.files:
            text = "1 where changed files can't be used, and those from before are still in force."
            unusable = GaugeMetricFamily("dragoman_files_unusable", text, labels=["files"])
            for each in self.files:
                unusable.add_metric([each.name], each.complaint is not None)
            yield unusable
        if self.tls is not None and self.tls.ends is not None:
            text = "When the certificate of the gRPC port ends, in seconds since 1970."
            yield GaugeMetricFamily("dragoman_certificate_end_timestamp_seconds", text, value=self.tls.ends)


def read_access(config: ServerConfig) -> Access:
    """Raises StartError where a file can't be used."""
    named = {
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
        # The sentence has a path, which two options may share, or both paths of a pair that does not match.
        options = [name for name, path in named.items() if path is not None and f" {path} " in f" {error} "]
        raise StartError(f"{error} ({', '.join(options)})") from None
    if keys is not None and not keys.files.value:
        log.warning("the file of API keys has none, so nobody is let in", file=str(config.api_keys))
    if keys is not None and tls is None:
        log.warning("without TLS whoever can listen on the network can read the API keys")
    return Access(tls, keys)
