"""Models of the hub, against a stand-in of its HTTP interface."""

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from dragoman_export.errors import ExportError
from dragoman_export.huggingface.hub import resolve

COMMIT = "0123456789abcdef0123456789abcdef01234567"
FILES = {
    "config.json": b'{"model_type": "marian"}',
    "vocab.json": b"{}",
    "source.spm": b"pieces",
    "model.safetensors": b"weights",
    "pytorch_model.bin": b"the same weights again",
    "tf_model.h5": b"and again",
}
REPOSITORIES = {"owner/model": FILES, "owner/bare": {"config.json": b"{}"}, "owner/gated": FILES}
RESOLVE = (
    "import sys; from dragoman_export.errors import ExportError; from dragoman_export.huggingface.hub import resolve\n"
    "try: path, origin = resolve(sys.argv[1], sys.argv[2] or None)\n"
    "except ExportError as error: print(error)\n"
    "else: print(origin); print(*sorted(file.name for file in path.iterdir()))"
)


class StandIn(BaseHTTPRequestHandler):
    """The parts of the hub that a download uses."""

    def do_HEAD(self) -> None:
        self.answer()

    def do_GET(self) -> None:
        self.answer()

    def answer(self) -> None:
        path = self.path.partition("?")[0].strip("/")
        if path.startswith("api/models/"):
            name, _, rest = path.removeprefix("api/models/").partition("/revision/")
            name, _, tree = name.partition("/tree/")
            if name not in REPOSITORIES:
                return self.send(
                    401, b"{}", {"X-Error-Code": "RepoNotFound", "X-Error-Message": "Repository not found"}
                )
            if rest and rest not in ("main", COMMIT):
                return self.send(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
            if name == "owner/gated":
                return self.send(403, b"{}", {"X-Error-Code": "GatedRepo"})
            if tree:
                sizes = {file: len(content) for file, content in REPOSITORIES[name].items()}
                listed = [{"type": "file", "path": file, "size": size, "oid": COMMIT} for file, size in sizes.items()]
                return self.send(200, json.dumps(listed).encode(), {"Content-Type": "application/json"})
            siblings = [{"rfilename": file} for file in REPOSITORIES[name]]
            info = {"id": name, "sha": COMMIT, "siblings": siblings, "cardData": {"license": "apache-2.0"}}
            return self.send(200, json.dumps(info).encode(), {"Content-Type": "application/json"})
        name, found, file = path.partition(f"/resolve/{COMMIT}/")
        if not found:
            return self.send(404, b"", {})
        content = REPOSITORIES[name][file]
        etag = hashlib.sha256(content).hexdigest()
        return self.send(200, content, {"ETag": f'"{etag}"', "X-Repo-Commit": COMMIT})

    def send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None: ...


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), StandIn) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def resolved(endpoint: str, cache: Path, model: str, revision: str = "", **variables: str) -> str:
    """What a program on another machine finds: huggingface_hub reads its variables when it is imported."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    environment |= {"HF_ENDPOINT": endpoint, "HF_HOME": str(cache), "HF_HUB_DISABLE_PROGRESS_BARS": "1", **variables}
    command = [sys.executable, "-c", RESOLVE, model, revision]
    done = subprocess.run(command, env=environment, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_one_kind_of_weights_is_downloaded_and_the_revision_pinned(endpoint: str, tmp_path: Path) -> None:
    origin, files = resolved(endpoint, tmp_path, "owner/model").splitlines()
    assert files == "config.json model.safetensors source.spm vocab.json"
    expected = f"name='owner/model', revision='{COMMIT}', license='apache-2.0', card='{endpoint}/owner/model'"
    assert origin == f"Origin({expected})"
    # A second time without the hub.
    origin, again = resolved("http://127.0.0.1:9", tmp_path, "owner/model", HF_HUB_OFFLINE="1").splitlines()
    assert again == files
    assert COMMIT in origin


@pytest.mark.parametrize(
    ("model", "revision", "problem"),
    [
        ("owner/gated", "", "owner/gated: the model is gated; accept its terms at"),
        ("owner/nothing", "", "owner/nothing: no such directory, and no such model on http://127.0.0.1"),
        ("owner/model", "v9", "owner/model: the repository has no revision 'v9'"),
        ("owner/bare", "", "owner/bare: the repository has neither safetensors nor pytorch_model.bin"),
    ],
)
def test_what_cannot_be_had_is_one_sentence(
    model: str, revision: str, problem: str, endpoint: str, tmp_path: Path
) -> None:
    [line] = resolved(endpoint, tmp_path, model, revision).splitlines()
    assert line.startswith(problem)


@pytest.mark.parametrize("variables", [{}, {"HF_HUB_OFFLINE": "1"}])
def test_without_the_hub_and_not_in_the_cache(variables: dict[str, str], tmp_path: Path) -> None:
    [line] = resolved("http://127.0.0.1:9", tmp_path, "owner/model", **variables).splitlines()
    assert line.startswith("owner/model: ")
    assert "reached" in line


def test_a_directory_is_itself(tmp_path: Path) -> None:
    folder, origin = resolve(str(tmp_path))
    assert (folder, origin.name, origin.revision, origin.license) == (tmp_path, tmp_path.name, "", "")
    for card, license_ in (("---\nlicense: apache-2.0\n---\n# A model", "apache-2.0"), ("---\nlicense: [a\n---\n", "")):
        (tmp_path / "README.md").write_text(card)
        assert resolve(str(tmp_path))[1].license == license_
    with pytest.raises(ExportError, match="--revision is for models of the hub"):
        resolve(str(tmp_path), "main")
    for missing in ("./missing", "x--y"):  # names that the hub's library refuses
        with pytest.raises(ExportError, match="neither a directory nor the name of a model"):
            resolve(missing)
    with pytest.raises(ExportError, match="neither a directory nor the name of a model"):
        resolve(str(tmp_path / "gone"))
