"""The documented commands of Docker, carried out by podman, with a store of its own and bases made here."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from tests.conftest import ROOT

PROGRAMS = ("podman", "crun", "mmdebstrap", "curl", "unshare", "nsenter")
BUILD_BASE, BASE = "localhost/build-base", "localhost/base"
DEBIAN = "trixie"
# What is put together of Debian's packages, without running any of their scripts, for it to be done in seconds.
CONTENTS = {
    BUILD_BASE: ["base-files", "coreutils", "dash", "libstdc++6", "python3-venv"],
    BASE: ["base-files", "libstdc++6", "python3"],
}
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
DEBIAN_KEYS = Path("/usr/share/keyrings/debian-archive-keyring.gpg")

# NOTE: --isolation, --cgroups and --ulimit let podman run inside of a container or sandbox that is not allowed to do
# all that root is. crun refuses machines with cgroups of both versions, so it gets to see those of version 2 alone.
# Without a network the container has its ports for itself. Podman's --read-only alone would leave a /tmp that can be
# written to, which Docker's does not. Each layer of a build is written several times, so there is one per image; and
# Go's threads get in each other's way more than they help.
DOCKER = r"""#!/bin/sh
set -e
export GOMAXPROCS=1
command=$1; shift
podman() { exec podman --runtime crun --root "$STORE/root" --runroot "$STORE/run" "$@"; }
case $command in
build)
    podman build --quiet --layers=false --isolation=chroot --network=host --secret=id=pip.conf,src="$STORE/pip.conf" \
        --build-arg=BUILD_BASE=localhost/build-base --build-arg=BASE=localhost/base "$@" ;;
run)
    set -- --runtime crun --root "$STORE/root" --runroot "$STORE/run" run --cgroups=disabled \
        --network="${NETWORK:-none}" --read-only-tmpfs=false --ulimit=nofile=4096:4096 --ulimit=nproc=4096:4096 "$@"
    [ -e /sys/fs/cgroup/cgroup.controllers ] || exec unshare --mount sh -c \
        'mount -t cgroup2 none /sys/fs/cgroup && exec podman "$@"' sh "$@"
    exec podman "$@" ;;
*)
    podman "$command" "$@" ;;
esac
"""


def missing_tools() -> str | None:
    """Why images can't be built here, if so."""
    missing = [program for program in PROGRAMS if shutil.which(program) is None]
    if missing:
        return f"needs {', '.join(missing)}: on Debian, apt-get install podman crun mmdebstrap curl"
    if not DEBIAN_KEYS.exists():
        return f"needs {DEBIAN_KEYS}, Debian's package debian-archive-keyring"
    return None if os.geteuid() == 0 else "needs to be root, to put bases together and to build on them"


class Docker:
    """Has `docker` mean podman in the commands that it runs. What they make is kept in `folder`."""

    def __init__(self, folder: Path) -> None:
        programs = folder / "bin"
        programs.mkdir()
        (programs / "docker").write_text(DOCKER, encoding="utf-8")
        (programs / "docker").chmod(0o755)
        (folder / "pip.conf").write_text(pip_settings(), encoding="utf-8")
        path = f"{programs}{os.pathsep}{os.environ['PATH']}"
        self._environment = {**os.environ, "PATH": path, "STORE": str(folder), "TMPDIR": str(folder)}
        self._make_bases(folder)

    def start(self, commands: str, folder: Path = ROOT) -> subprocess.Popen[str]:
        """Starts commands of a shell, in a folder."""
        return subprocess.Popen(
            ["bash", "-euc", commands],
            cwd=folder,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, commands: str, folder: Path = ROOT) -> str:
        """Runs commands of a shell and returns what they print; they must not fail."""
        process = self.start(commands, folder)
        output, errors = process.communicate(timeout=600)
        assert process.returncode == 0, f"{commands}\n{output[-2000:]}{errors[-6000:]}"
        return output

    def _make_bases(self, folder: Path) -> None:
        making = {name: self.start(f"{mmdebstrap(name)} > {folder}/{Path(name).name}.tar") for name in CONTENTS}
        for name, process in making.items():
            errors = process.communicate(timeout=300)[1]
            assert process.returncode == 0, errors
            archive = folder / f"{Path(name).name}.tar"
            self.run(f"docker import --quiet {archive} {name}")
            archive.unlink()


def mmdebstrap(base: str) -> str:
    """The command that prints the archive of a base. The one that pip runs on has the certificates of this machine."""
    command = f"mmdebstrap --quiet --variant=extract --include={','.join(CONTENTS[base])}"
    if base == BUILD_BASE:
        certificates = os.environ.get("PIP_CERT", CERTIFICATES)
        command += f" --setup-hook='install -D -m 644 {certificates} \"$1{CERTIFICATES}\"'"
    return f"{command} {DEBIAN} -"


def pip_settings() -> str:
    """A pip.conf that names the indexes of this machine's pip, as far as they are not folders."""
    command = [sys.executable, "-m", "pip", "config", "list"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    names = "index-url|extra-index-url|trusted-host|proxy"
    found = dict(re.findall(rf"^(?:global|:env:)\.({names})='(.+)'$", listed, re.MULTILINE))
    kept = {name: value for name, value in found.items() if "file:" not in value}
    return "\n".join(["[global]", *(f"{name} = {value}" for name, value in kept.items()), ""])
