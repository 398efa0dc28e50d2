"""Generates the Python stubs from the .proto files in this directory. `--check` only reports whether they are stale."""

import argparse
import filecmp
import importlib.util
import sys
import tempfile
from pathlib import Path

from grpc_tools import protoc

PROTOS = Path(__file__).parent
GENERATED = ("*_pb2.py", "*_pb2.pyi", "*_pb2_grpc.py")
# Packages whose descriptors are kept out of protobuf's default pool, with the import that replaces it.
POOLS = {"dragoman/inference": "from dragoman.inference import pool as _descriptor_pool"}
DEFAULT_POOL = "from google.protobuf import descriptor_pool as _descriptor_pool"


def generate(output: Path) -> None:
    """Writes the stubs of every .proto file under `output`.

    Raises:
        RuntimeError: The compiler failed; it has printed why on standard error.
    """
    well_known = Path(protoc.__file__).parent / "_proto"  # google/protobuf/*.proto
    common = importlib.util.find_spec("google.rpc")  # google/rpc/*.proto, of googleapis-common-protos
    if common is None or not common.submodule_search_locations:
        raise RuntimeError("googleapis-common-protos is not installed")
    googleapis = Path(common.submodule_search_locations[0]).parent.parent
    sources = sorted(str(path.relative_to(PROTOS)) for path in PROTOS.rglob("*.proto"))
    includes = [f"-I{folder}" for folder in (PROTOS, well_known, googleapis)]
    outputs = [f"--{kind}_out={output}" for kind in ("python", "pyi", "grpc_python")]
    if protoc.main(["protoc", *includes, *outputs, *sources]) != 0:
        raise RuntimeError("protoc failed")
    for package, pool in POOLS.items():
        for stub in (output / package).glob("*_pb2.py"):
            text = stub.read_text()
            if DEFAULT_POOL not in text:
                raise RuntimeError(f"{stub} does not import its descriptor pool as expected")
            stub.write_text(text.replace(DEFAULT_POOL, pool))


def stubs(folder: Path) -> set[Path]:
    """Returns the generated files under a directory, relative to it."""
    return {path.relative_to(folder) for pattern in GENERATED for path in folder.rglob(pattern)}


def outdated() -> list[Path]:
    """Returns the stubs that are missing, stale, or without a .proto file, relative to this directory."""
    with tempfile.TemporaryDirectory() as folder:
        fresh = Path(folder)
        generate(fresh)
        same, _, _ = filecmp.cmpfiles(fresh, PROTOS, map(str, stubs(fresh)), shallow=False)
        return sorted((stubs(fresh) | stubs(PROTOS)) - set(map(Path, same)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a stub is out of date")
    if not parser.parse_args().check:
        generate(PROTOS)
    elif stale := outdated():
        sys.exit(f"out of date, run `make protos`: {', '.join(map(str, stale))}")


if __name__ == "__main__":
    main()
