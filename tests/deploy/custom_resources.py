"""Objects that Kubernetes gets from others: their own models where a package has them, else the documented fields."""

import functools
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Annotated, Any, Literal, cast

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError
from pydantic.alias_generators import to_camel

Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$")]
HostName = Annotated[
    str, StringConstraints(pattern=r"^(\*\.)?[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$")
]
Port = Annotated[int, Field(ge=1, le=65535)]


class _Object(BaseModel):
    model_config = ConfigDict(extra="forbid", alias_generator=to_camel, strict=True)


class _Metadata(_Object):
    name: Name
    namespace: Name | None = None
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}


class _Parent(_Object):
    group: str = "gateway.networking.k8s.io"
    kind: str = "Gateway"
    namespace: Name | None = None
    name: Name
    section_name: Name | None = None
    port: Port | None = None


class _Backend(_Object):
    group: Literal[""] = ""
    kind: Literal["Service"] = "Service"
    name: Name
    namespace: Name | None = None
    port: Port
    weight: int = 1


class _Method(_Object):
    type: Literal["Exact", "RegularExpression"] = "Exact"
    service: str | None = None
    method: str | None = None


class _Match(_Object):
    method: _Method | None = None
    headers: list[dict[str, str]] = []


class _Rule(_Object):
    name: Name | None = None
    matches: Annotated[list[_Match], Field(max_length=64)] = []
    filters: list[dict[str, Any]] = []
    backend_refs: Annotated[list[_Backend], Field(min_length=1, max_length=16)]


class _RouteSpec(_Object):
    parent_refs: Annotated[list[_Parent], Field(min_length=1, max_length=32)]
    hostnames: Annotated[list[HostName], Field(max_length=16)] = []
    rules: Annotated[list[_Rule], Field(min_length=1, max_length=16)]


class GRPCRoute(_Object):
    """https://gateway-api.sigs.k8s.io/reference/spec/#grpcroute"""

    api_version: Literal["gateway.networking.k8s.io/v1"]
    kind: Literal["GRPCRoute"]
    metadata: _Metadata
    spec: _RouteSpec


class _CertificateReference(_Object):
    group: Literal[""] = ""
    kind: Literal["Secret"] = "Secret"
    name: Name
    namespace: Name | None = None


class _ListenerTls(_Object):
    mode: Literal["Terminate", "Passthrough"] = "Terminate"
    certificate_refs: list[_CertificateReference] = []
    options: dict[str, str] = {}


class _RouteNamespaces(_Object):
    from_: Annotated[Literal["All", "Selector", "Same"], Field(alias="from")] = "Same"
    selector: dict[str, Any] | None = None


class _RouteKind(_Object):
    group: str = "gateway.networking.k8s.io"
    kind: str


class _AllowedRoutes(_Object):
    namespaces: _RouteNamespaces | None = None
    kinds: list[_RouteKind] = []


class _Listener(_Object):
    name: Name
    hostname: HostName | None = None
    port: Port
    protocol: Literal["HTTP", "HTTPS", "TLS", "TCP", "UDP"]
    tls: _ListenerTls | None = None
    allowed_routes: _AllowedRoutes = _AllowedRoutes()


class _GatewaySpec(_Object):
    gateway_class_name: Name
    listeners: Annotated[list[_Listener], Field(min_length=1, max_length=64)]


class Gateway(_Object):
    """https://gateway-api.sigs.k8s.io/reference/spec/#gateway"""

    api_version: Literal["gateway.networking.k8s.io/v1"]
    kind: Literal["Gateway"]
    metadata: _Metadata
    spec: _GatewaySpec


def faults_by(model: type[BaseModel]) -> Callable[[Mapping[str, Any]], list[str]]:
    """Returns a function that says what is wrong with an object by its model; unknown fields are faults too."""

    def faults(document: Mapping[str, Any]) -> list[str]:
        try:
            model.model_validate(document, extra="forbid")
        except ValidationError as error:
            return [f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors()]
        return []

    return faults


OURS: dict[tuple[str, str], type[BaseModel]] = {
    ("gateway.networking.k8s.io/v1", "GRPCRoute"): GRPCRoute,
    ("gateway.networking.k8s.io/v1", "Gateway"): Gateway,
}
# Modules with the models of others. They take seconds to import, and few tests need them.
THEIRS = {
    ("keda.sh/v1alpha1", "ScaledObject"): "cloudcoil.models.keda.v1alpha1",
    ("monitoring.coreos.com/v1", "PodMonitor"): "cloudcoil.models.prometheus_operator.v1",
    ("monitoring.coreos.com/v1alpha1", "AlertmanagerConfig"): "cloudcoil.models.prometheus_operator.v1alpha1",
    ("monitoring.coreos.com/v1", "PrometheusRule"): "cloudcoil.models.prometheus_operator.v1",
}


@functools.cache
def model_of(api_version: str, kind: str) -> type[BaseModel] | None:
    """Returns the model of a kind of object; None for kinds of Kubernetes itself."""
    key = api_version, kind
    if key in THEIRS:
        return cast(type[BaseModel], getattr(import_module(THEIRS[key]), kind))
    return OURS.get(key)
