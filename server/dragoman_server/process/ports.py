"""Opens the gRPC port and the HTTP port."""

from dataclasses import dataclass
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
from dragoman_server.process.addresses import addresses_of, cannot_listen, listen_on
from dragoman_server.process.connections import allow_connections, server_options
from dragoman_server.process.readiness import Probes
from dragoman_server.process.web import serve_http
from dragoman_server.security.access import Access
from dragoman_server.telemetry.observer import Observer

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Services:
    """The gRPC services of the main port.

    Attributes:
        admin: None if administration is switched off.
    """

    generation: GenerationService
    inference: InferenceService
    admin: AdminService | None
    health: Health


def listen(
    config: ServerConfig, metrics: ServerMetrics, services: Services, access: Access, observer: Observer
) -> tuple[grpc.aio.Server, int]:
    """Returns the gRPC server, not yet started, and its port.

    Raises:
        StartError: The port can't be opened, or too few files may be open.
    """
    if (connections := allow_connections(config)) < config.max_connections:
        log.warning("the limit of open files allows fewer connections than --max-connections", connections=connections)
    addresses = addresses_of(config.host, config.port, "--port")
    authenticator = Authenticator(access.keys)
    metrics.registry.register(authenticator)
    metrics.registry.register(access)
    interceptor = CallInterceptor(metrics, authenticator, config.log_text, observer, config.max_message_bytes)
    server = grpc.aio.server(interceptors=[interceptor], options=server_options(config, connections))
    generation_pb2_grpc.add_GenerationServiceServicer_to_server(services.generation, server)
    open_inference_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(services.inference, server)
    health_pb2_grpc.add_HealthServicer_to_server(services.health, server)
    names = [GENERATION, INFERENCE, health_pb2.DESCRIPTOR.services_by_name["Health"].full_name]
    if services.admin is not None:
        admin_pb2_grpc.add_AdminServiceServicer_to_server(services.admin, server)
        names.append(ADMIN)
    if config.reflection:
        enable_reflection(names, server)
    add_port = server.add_insecure_port
    if access.tls is not None:
        add_port = partial(server.add_secure_port, server_credentials=access.tls.credentials())
    return server, listen_on(addresses, config.port, "--port", add_port)


def serve_metrics(config: ServerConfig, metrics: ServerMetrics, probes: Probes) -> int:
    """Starts to serve metrics, probes and the live page over HTTP, in threads of their own; returns the port.

    Raises:
        StartError: The port can't be opened.
    """
    addresses, port = addresses_of(config.host, config.metrics_port, "--metrics-port"), config.metrics_port
    history = History(metrics)
    for address in addresses:
        try:
            port = serve_http(address, port, metrics.registry, probes, history).server_port
        except OSError as error:  # another program has taken it since it was looked at
            raise cannot_listen(error, address, port, "--metrics-port") from None
    history.start()
    return port
