"""Worker processes on every device there is: the same answers on the CPU and, where a GPU is at hand, on CUDA."""

from pathlib import Path

import pytest

from dragoman import Client
from dragoman.local import LocalServer
from dragoman_server.runtime.device import DeviceError, choose_device

NUMBERS = ["7", "42", "365", "9801"]


@pytest.fixture(params=["cpu", pytest.param("cuda:0", marks=pytest.mark.gpu)])
def served(request: pytest.FixtureRequest, tiny_bundle: Path, tiny_run: Path, tmp_path: Path) -> tuple[str, Path]:
    """A device, and a bundle for it."""
    if request.param == "cpu":
        return "cpu", tiny_bundle
    try:
        choose_device(request.param, tiny_bundle / "encoder.onnx")
    except DeviceError as error:
        pytest.skip(f"no GPU to test on: {error}")
    from dragoman_export.export import ExportOptions, export_run

    export_run(tiny_run, tmp_path / "fp16", ExportOptions(name="tiny", precision="fp16", device="cuda"))
    return request.param, tmp_path / "fp16"


def test_a_worker_computes_on_the_device_it_is_given(
    served: tuple[str, Path], tiny_server: LocalServer, tmp_path: Path
) -> None:
    device, bundle = served
    arguments = ["--bundle", str(bundle), "--device", device, "--workers", "1"]
    with LocalServer(*arguments, log=tmp_path / "log") as server, Client(server.address) as client:
        with Client(tiny_server.address) as reference:
            for beam_size in (1, 4):
                answers = [client.generate(number, beam_size=beam_size).text for number in NUMBERS]
                assert answers == [reference.generate(number, beam_size=beam_size).text for number in NUMBERS]
        devices = [key for key, value in server.metrics().items() if key.startswith("dragoman_device_info") and value]
        assert len(devices) == 1
        assert f'device="{device}"' in devices[0]
        assert server.stop() == 0
