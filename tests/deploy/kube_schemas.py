"""What a Kubernetes API server would say of an object, strictly: fields that do not exist are faults too."""

import functools
import json
from collections.abc import Iterator, Mapping
from importlib.resources import files
from typing import Any

from jsonschema import Draft202012Validator
from kubernetes_validate.utils import all_versions
from referencing import Registry, Resource

from tests.deploy.custom_resources import faults_by, model_of
from tests.deploy.kserve_models import kserve_faults

# The last three minors, of those that the package has.
MINORS = list(dict.fromkeys(all_versions()))[-3:]
# Volumes that the restricted profile of Pod Security allows: pod-security-admission, check_restrictedVolumes.go.
RESTRICTED_VOLUMES = frozenset(
    "configMap csi downwardAPI emptyDir ephemeral image persistentVolumeClaim projected secret".split()
)
Document = Mapping[str, Any]


def faults(document: Document, minor: str) -> list[str]:
    """What is wrong with an object, each with where: "spec.replicas: 'x' is not of type 'integer'"."""
    if document["apiVersion"].startswith("serving.kserve.io/"):
        return kserve_faults(document, lambda value, definition: part_faults(value, definition, minor))
    if model := model_of(document["apiVersion"], document["kind"]):
        return faults_by(model)(document)
    group, _, version = document["apiVersion"].rpartition("/")
    name = "-".join(filter(None, (document["kind"].lower(), group.partition(".")[0], version)))
    return _told(_validator(minor, name).iter_errors(document))


def part_faults(value: Any, definition: str, minor: str) -> list[str]:
    """The same of a part of an object, such as an "io.k8s.api.core.v1.Container"."""
    schema = {"$ref": f"{_schema(minor, '_definitions')['$id']}#/$defs/{definition}"}
    return _told(Draft202012Validator(schema, registry=_definitions(minor)).iter_errors(value))


def _told(errors: Iterator[Any]) -> list[str]:
    return [f"{'.'.join(map(str, error.absolute_path))}: {error.message}" for error in errors]


@functools.cache
def _definitions(minor: str) -> Registry[Any]:
    return Resource.from_contents(_schema(minor, "_definitions")) @ Registry()


@functools.cache
def _validator(minor: str, name: str) -> Draft202012Validator:
    schema = _schema(minor, name)
    return Draft202012Validator(schema, registry=Resource.from_contents(schema) @ _definitions(minor))


@functools.cache
def _schema(minor: str, name: str) -> Any:
    folder = files("kubernetes_validate") / "kubernetes-json-schema" / f"v{minor}-local-strict"
    return json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))


def unrestricted(pod: Document) -> list[str]:
    """Where a pod's spec breaks the restricted profile of Pod Security, beyond which its namespace may let nothing in.

    https://kubernetes.io/docs/concepts/security/pod-security-standards/#restricted
    """
    broken = []
    own = pod.get("securityContext", {})
    if own.get("runAsNonRoot") is not True or own.get("runAsUser") == 0:
        broken.append("it may run as root")
    if own.get("seccompProfile", {}).get("type") not in ("RuntimeDefault", "Localhost"):
        broken.append("it has no seccomp profile")
    broken += [f"it shares the host's {each}" for each in ("hostNetwork", "hostPID", "hostIPC") if pod.get(each)]
    for volume in pod.get("volumes", ()):
        if not RESTRICTED_VOLUMES & volume.keys():
            broken.append(f"the volume {volume['name']} is of another type")
    for container in [*pod.get("initContainers", ()), *pod["containers"]]:
        context = container.get("securityContext", {})
        if context.get("allowPrivilegeEscalation") is not False:
            broken.append(f"{container['name']} may gain privileges")
        capabilities = context.get("capabilities", {})
        if "ALL" not in capabilities.get("drop", ()) or set(capabilities.get("add", ())) - {"NET_BIND_SERVICE"}:
            broken.append(f"{container['name']} keeps capabilities")
        if context.get("privileged") or any("hostPort" in port for port in container.get("ports", ())):
            broken.append(f"{container['name']} is privileged or takes a port of the host")
    return broken
