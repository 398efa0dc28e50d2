"""What listens: gRPC on one port, metrics and probes on another, health checks on a third if there is one."""

from functools import partial

import grpc
import structlog
from grpc_health.v1 import health_pb2, health_pb2_grpc

from dragoman.inference import open_inference_pb2_grpc
from dragoman.v1 import admin_pb2_grpc, generation_pb2_grpc
from dragoman_server.api.admin_service import SERVICE as ADMIN
from dragoman_server.api.admin_service import AdminService
from dragoman_server.api.auth import Authenticator
from dragoman_server.api.generation_service import SERVICE as GENERATION
from dragoman_server.api.generation_service import GenerationService
from dragoman_server.api.health_service import Health
from dragoman_server.api.inference.inference_service import SERVICE as INFERENCE
from dragoman_server.api.inference.inference_service import InferenceService
from dragoman_server.api.interceptor import CallInterceptor
from dragoman_server.api.reflection import enable_reflection
from dragoman_server.config import ServerConfig
from dragoman_server.live.history import History
from dragoman_server.metrics import ServerMetrics
from dragoman_server.process.addresses import addresses_of, listen_on
from dragoman_server.process.connections import allow_connections, server_options
from dragoman_server.process.health_port import health_server, health_threads
from dragoman_server.process.probes import Probes
from dragoman_server.process.web import serve_http
from dragoman_server.security.access import Access
from dragoman_server.telemetry.observer import Observer

log = structlog.get_logger()


def listen(
    config: ServerConfig,
    metrics: ServerMetrics,
    service: GenerationService,
    inference: InferenceService,
    admin: AdminService | None,
    health: Health,
    access: Access,
    observer: Observer,
) -> tuple[grpc.aio.Server, int]:
    """The gRPC server, not yet started, and its port.

    Args:
        admin: None where administration is switched off.
        observer: hears of every call.

    Raises:
        StartError: the port can't be had, or too few files may be open.
    """
    if (connections := allow_connections(config)) < config.max_connections:
        log.warning("the limit of open files allows fewer connections than --max-connections", connections=connections)
    addresses = addresses_of(config.host, config.port, "--port")
    authenticator = Authenticator(access.keys)
    metrics.registry.register(authenticator)
    metrics.registry.register(access)
    interceptor = CallInterceptor(metrics, authenticator, config.log_text, observer, config.max_message_bytes)
    server = grpc.aio.server(interceptors=[interceptor], options=server_options(config, connections))
    generation_pb2_grpc.add_GenerationServiceServicer_to_server(service, server)
    open_inference_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(inference, server)
    health_pb2_grpc.add_HealthServicer_to_server(health, server)
    names = [GENERATION, INFERENCE, health_pb2.DESCRIPTOR.services_by_name["Health"].full_name]
    if admin is not None:
        admin_pb2_grpc.add_AdminServiceServicer_to_server(admin, server)
        names.append(ADMIN)
    if config.reflection:
        enable_reflection(names, server)
    add_port = server.add_insecure_port
    if access.tls is not None:
        add_port = partial(server.add_secure_port, server_credentials=access.tls.credentials())
    return server, listen_on(addresses, config.port, "--port", add_port)


def serve_metrics(config: ServerConfig, metrics: ServerMetrics, probes: Probes) -> int:
    """Serves metrics, probes and a page over HTTP, in threads of their own; gives the port."""
    addresses, port = addresses_of(config.host, config.metrics_port, "--metrics-port"), config.metrics_port
    history = History(metrics)
    history.start()
    for address in addresses:
        port = serve_http(address, port, metrics.registry, probes, history).server_port
    return port


class HealthPort:
    """Health checks on their own port, if one is configured; in plain text, as the kubelet speaks it.

    Attributes:
        number: of the port; None without one.

    Raises:
        StartError: the port can't be had.
    """

    def __init__(self, config: ServerConfig, health: Health, probes: Probes) -> None:
        self.number: int | None = None
        self._server: grpc.Server | None = None
        if config.health_port is None:
            return
        addresses = addresses_of(config.host, config.health_port, "--health-port")
        self._threads = health_threads()
        self._server = health_server(config, health, probes, self._threads)
        self.number = listen_on(addresses, config.health_port, "--health-port", self._server.add_insecure_port)
        self._server.start()

    def close(self) -> None:
        """Ends at once what runs there, and waits until it has ended."""
        if self._server is not None:
            self._server.stop(None).wait()
            self._threads.shutdown()
