"""Host memory as cgroups and /proc tell it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rmux.run import host_memory

MIB = 2**20


def write(folder: Path, **values: int | str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in values.items():
        (folder / name.replace("__", ".")).write_text(f"{value}\n")


def own(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "own"
    path.write_text(text)
    return path


def test_the_tightest_level_above_a_process_counts_and_idle_page_cache_does_not(tmp_path):
    root = tmp_path / "cgroup"
    stat = "anon 10\ninactive_file 30"
    write(root / "a", memory__max=1000, memory__current=500, memory__stat=stat)
    write(root / "a/b", memory__max=600, memory__current=400, memory__stat=stat)
    write(root / "a/b/c", memory__max="max", memory__current=400)
    where = own(tmp_path, "0::/a/b/c\n")
    assert host_memory.cgroup_limit(root=root, own=where) == (600, 370)


def test_version_1_says_it_in_its_own_words(tmp_path):
    root = tmp_path / "cgroup"
    write(
        root / "memory" / "x",
        memory__limit_in_bytes=2000,
        memory__usage_in_bytes=900,
        memory__stat="total_inactive_file 100",
    )
    write(root / "memory", memory__limit_in_bytes=2**63 - 4096, memory__usage_in_bytes=900)
    where = own(tmp_path, "5:cpu:/x\n4:memory:/x\n0::/\n")
    assert host_memory.cgroup_limit(root=root, own=where) == (2000, 800)


@pytest.mark.parametrize("text", ["0::/elsewhere\n", "", "3:cpu:/\n"])
def test_no_limit_is_none(tmp_path, text):
    assert host_memory.cgroup_limit(root=tmp_path, own=own(tmp_path, text)) is None


def test_a_process_that_has_ended_holds_nothing():
    assert host_memory.pss_bytes(2**22 - 1) == 0
    assert host_memory.pss_bytes(os.getpid()) > MIB


def test_what_a_job_starts_is_offered_to_the_oom_killer_before_rmux():
    script = (
        "import subprocess; from rmux.run.host_memory import offer_to_oom_killer as offer;"
        "print(offer(), flush=True); subprocess.run(['cat', '/proc/self/oom_score_adj'])"
    )
    told = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    ).stdout.split()
    mine = int(Path("/proc/self/oom_score_adj").read_text())
    assert [int(score) for score in told] == [min(1000, mine + 500)] * 2
