"""The control groups of this process: what its container may use. Version 1 and 2."""

from pathlib import Path

PROCESS = Path("/proc/self")
CGROUPS = Path("/sys/fs/cgroup")


def control_groups(controller: str, process: Path = PROCESS, cgroups: Path = CGROUPS) -> tuple[list[Path], list[Path]]:
    """The groups of the process and all above them, since each may limit. Some may be the host's, and not to be seen.

    Args:
        controller: "cpu" or "memory".
        process: where `cgroup`, the groups of the process, stands.
        cgroups: where the control group file systems are mounted.

    Returns:
        those of version 1, and those of version 2.
    """
    first: list[Path] = []
    second: list[Path] = []
    try:
        lines = (process / "cgroup").read_text().splitlines()
    except OSError:
        return first, second
    for line in lines:  # hierarchy:controllers:path, with no controllers in version 2
        _, controllers, path = line.split(":", 2)
        if not controllers:
            second += _with_parents(cgroups, path)
        elif controller in controllers.split(","):
            names = (controllers, controller)
            mount = next((cgroups / name for name in names if (cgroups / name).is_dir()), cgroups / controller)
            first += _with_parents(mount, path)
    return first, second


def _with_parents(mount: Path, path: str) -> list[Path]:
    relative = Path(path.lstrip("/"))
    return [mount / group for group in (relative, *relative.parents)]
