"""Host memory as the host counts it: of processes, shared segments, the host and its cgroup."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_SHM = Path("/dev/shm")
_CGROUPS = Path("/sys/fs/cgroup")
_UNLIMITED_BYTES = 2**60
"""Version 1 writes a number near 2^63 where there is no limit."""
_VICTIM_SCORE = 500
_MOST_VICTIM_SCORE = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class HostMemory:
    """What the host, or the tightest cgroup above this process, has and has left, bytes."""

    total_bytes: int
    available_bytes: int
    cgroup_limit_bytes: int | None = None
    cgroup_used_bytes: int = 0
    """Without page cache that nobody has used lately: the kernel takes that back first."""


def read_host(root: Path = _CGROUPS) -> HostMemory:
    import psutil

    seen = psutil.virtual_memory()
    limit = cgroup_limit(root=root)
    return HostMemory(
        total_bytes=int(seen.total),
        available_bytes=int(seen.available),
        cgroup_limit_bytes=None if limit is None else limit[0],
        cgroup_used_bytes=0 if limit is None else limit[1],
    )


def cgroup_limit(
    *, root: Path = _CGROUPS, own: Path = Path("/proc/self/cgroup")
) -> tuple[int, int] | None:
    """(limit, used) in bytes of the cgroup above this process that has least left; None: no limit.

    Version 1 and 2; a container that sees only its own part of the tree finds itself at the root.
    """
    found: list[tuple[int, int]] = []
    for line in _lines(own):
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            names = ("memory.max", "memory.current", "inactive_file")
            base = root
        elif "memory" in controllers.split(","):
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            base = root / "memory"
        else:
            continue
        folder = base / path.lstrip("/")
        for level in (folder, *folder.parents):
            if level != base and base not in level.parents:
                break
            found += _limit_in(level, *names)
    return min(found, key=lambda pair: pair[0] - pair[1], default=None)


def pss_bytes(pid: int) -> int:
    """Proportional set size of a process: shared pages count once in a sum. 0 when it has ended."""
    return sum(_pss(pid))


def job_bytes(pids: Iterable[int], segments_bytes: int = 0) -> int:
    """Host memory of a job's processes and of its named shared segments.

    A segment that nobody maps is in no process's count, and one that is mapped is in some: so only
    what the segments have beyond the mapped shared memory is added.
    """
    private = shared = 0
    for pid in pids:
        own, mapped = _pss(pid)
        private += own
        shared += mapped
    return private + max(shared, segments_bytes)


def segments_bytes(text: str) -> int:
    """Host memory of this user's segments in /dev/shm whose names contain the text."""
    total = 0
    for entry in _SHM.iterdir():
        with contextlib.suppress(OSError):
            seen = entry.lstat()
            if text in entry.name and seen.st_uid == os.getuid():
                total += seen.st_blocks * 512
    return total


def offer_to_oom_killer() -> int:
    """Let the kernel's OOM killer prefer this process and what it starts to rmux's own; the score
    it has now. Anybody may raise a score; it is inherited."""
    path = Path("/proc/self/oom_score_adj")
    try:
        score = min(_MOST_VICTIM_SCORE, int(path.read_text()) + _VICTIM_SCORE)
        path.write_text(str(score))
    except (OSError, ValueError):
        return 0
    return score


def trim_heap() -> None:
    """Give what the allocator of this process keeps for later back to the host."""
    import ctypes

    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def _pss(pid: int) -> tuple[int, int]:
    """(private and file pages, shared memory) of a process, bytes."""
    total = shared = 0
    for line in _lines(Path(f"/proc/{pid}/smaps_rollup")):
        name, _, rest = line.partition(":")
        if name == "Pss":
            total = int(rest.split()[0]) * 1024
        elif name == "Pss_Shmem":
            shared = int(rest.split()[0]) * 1024
    return total - shared, shared


def _limit_in(folder: Path, limit: str, used: str, cached: str) -> list[tuple[int, int]]:
    try:
        limit_bytes = int((folder / limit).read_text())
        used_bytes = int((folder / used).read_text())
    except (OSError, ValueError):
        return []  # 'max', or no such level here
    if limit_bytes >= _UNLIMITED_BYTES:
        return []
    stat = dict(line.split(" ", 1) for line in _lines(folder / "memory.stat"))
    return [(limit_bytes, max(0, used_bytes - int(stat.get(cached, "0"))))]


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
