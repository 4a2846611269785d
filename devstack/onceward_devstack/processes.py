"""What /proc says about a process and its children."""

from __future__ import annotations

from pathlib import Path

_PROC = Path("/proc")


def family(pid: int) -> list[int]:
    """The process and all its descendants."""
    pids = [pid]
    for member in pids:  # grows while it is walked
        for task in _tasks(member):
            try:
                pids += [int(child) for child in (task / "children").read_text().split()]
            except OSError:
                continue
    return pids


def memory_mib(pid: int) -> int | None:
    """Memory of a process and its children, shared pages counted once; None where /proc does not tell."""
    total = 0
    for member in family(pid):
        try:
            total += _proportional_kib((_PROC / str(member) / "smaps_rollup").read_text())
        except (OSError, ValueError):
            continue
    return total // 1024 or None


def start_ticks(pid: int) -> int | None:
    """When the process started, in ticks since boot; with the pid this names one process for good. None if it ended."""
    try:
        fields = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else int(fields[19])


def _tasks(pid: int) -> list[Path]:
    try:
        return list((_PROC / str(pid) / "task").iterdir())
    except OSError:
        return []


def _proportional_kib(rollup: str) -> int:
    line = next(line for line in rollup.splitlines() if line.startswith("Pss:"))
    return int(line.split()[1])
