"""How much memory this process can still take. Standard library only."""

from __future__ import annotations

from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")


def available_bytes() -> int:
    """What the machine has left, or less where a scheduler or a container set a limit."""
    limits = [_left_in_group(group) for group in _groups()]
    return min([_left_on_machine(), *(limit for limit in limits if limit is not None)])


def _left_on_machine() -> int:
    lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
    found = dict(line.split(":", 1) for line in lines)
    return int(found["MemAvailable"].split()[0]) * 1024


def _groups() -> list[Path]:
    """The control groups of this process, version 2 with those above, and version 1 for memory."""
    groups: list[Path] = []
    try:
        lines = Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    for line in lines:
        _, kinds, path = line.split(":", 2)
        if kinds and "memory" not in kinds.split(","):
            continue
        top = CGROUPS / "memory" if kinds else CGROUPS
        group = top / path.lstrip("/")
        groups += [one for one in (group, *group.parents) if one.is_relative_to(top)]
    return groups


def _left_in_group(group: Path) -> int | None:
    """None where there is no limit. Pages of files are given back, so they do not count as taken."""
    for limit, used in (
        ("memory.max", "memory.current"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes"),
    ):
        try:
            most, taken = int((group / limit).read_text()), int((group / used).read_text())
            counts = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        except (OSError, ValueError):
            continue
        return max(0, most - taken + int(counts.get("inactive_file", 0)) + int(counts.get("active_file", 0)))
    return None
