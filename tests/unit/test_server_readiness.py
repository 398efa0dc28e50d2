"""What the kubelet and the health service hear while models come and go."""

from dragoman_server.api.health_service import Health
from dragoman_server.process.readiness import Probes, Readiness


def test_ready_is_a_server_that_has_tried_all_models_and_serves_one() -> None:
    health, probes = Health([]), Probes()
    readiness = Readiness(health, probes)
    readiness.models({"a": True})
    assert (probes.startupz(), probes.readyz(), health.serving) == ("the model is loading",) * 2 + (False,)
    readiness.start()
    assert (probes.startupz(), probes.readyz(), health.serving) == (None, None, True)
    readiness.models({"a": False})
    assert (probes.startupz(), probes.readyz(), health.serving) == (None, "no model can answer at the moment", False)
    readiness.models({"a": False, "b": True})
    assert (probes.readyz(), health.serving) == (None, True)
    readiness.end()
    readiness.models({"a": True})
    assert (probes.readyz(), probes.livez(), health.serving) == ("the server is draining", None, False)


def test_a_server_that_starts_without_models_has_started_and_is_not_ready() -> None:
    health, probes = Health([]), Probes()
    readiness = Readiness(health, probes)
    readiness.start()
    readiness.models({})
    assert (probes.startupz(), probes.readyz(), health.serving) == (None, "no model is loaded", False)
    readiness.end("an engine failed")
    assert probes.livez() == "an engine failed"
