"""Another user of the host tries to read what jobs keep there: files, shared memory, sockets."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import socket
import stat
import sys
import tempfile
from pathlib import Path

import pytest

from rmux.run import parent, processes, valkey
from rmux.run.workers.cache import HostWeightCache, WeightEntry
from rmux.sync.transport.base import Endpoint
from rmux.sync.transport.tcp import send

pytestmark = [
    pytest.mark.redis,
    pytest.mark.slow,
    pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user to try"),
]

NOBODY = 65534
MIB = 2**20

_PATH = Path(__file__).parent / "live_group.py"
_SPEC = importlib.util.spec_from_file_location("rmux_live_group", _PATH)
live_group = importlib.util.module_from_spec(_SPEC)
sys.modules.setdefault("rmux_live_group", live_group)
_SPEC.loader.exec_module(live_group)


@pytest.fixture
def group():
    """Below folders that everybody may enter, so that only rmux's own modes protect anything."""
    base = Path(tempfile.mkdtemp(prefix="rmux-open-"))
    base.chmod(0o755)
    (base / "runs").mkdir()
    (base / "runs").chmod(0o755)
    opened = live_group.open_group(base)
    yield opened
    opened.close()
    shutil.rmtree(base)


@pytest.fixture
def segments():
    """The two slots and the index of a weight cache with a version in it."""
    tag = f"rmux-open-{os.getpid()}"
    cache = HostWeightCache(run_tag=tag, node="roll0")
    entry = WeightEntry(name="w", dtype="float32", shape=(256,), offset=0)
    for version in (1, 2):
        name = cache.begin(version, [entry])
        endpoint = Endpoint.parse(cache.endpoint())
        sent = send(endpoint, memoryview(bytes(1024)), transfer_id=name, deadline_s=10)
        cache.commit(version, sent.checksum)
    yield [path for path in Path("/dev/shm").iterdir() if tag in path.name]
    cache.close()


def below(*folders: Path) -> list[Path]:
    return [path for folder in folders for path in (folder, *folder.rglob("*"))]


def opened_by(uid: int, paths: list[Path], pids: list[int]) -> list[str]:
    """Which of the paths a process of that user can read, list or connect to, and whose memory."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        found: list[str] = []
        try:
            os.close(reader)
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
            found += [str(path) for path in paths if _opens(path)]
            found += [
                f"/proc/{pid}/{name}"
                for pid in pids
                for name in ("mem", "environ", "maps")
                if _opens(Path(f"/proc/{pid}/{name}"))
            ]
            os.write(writer, json.dumps(found).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as answer:
        told = answer.read()
    os.waitpid(child, 0)
    return list(json.loads(told))


def _opens(path: Path) -> bool:
    try:
        if stat.S_ISSOCK(path.stat().st_mode):
            with socket.socket(socket.AF_UNIX) as client:
                client.connect(str(path))
            return True
        os.close(os.open(path, os.O_RDONLY))
    except OSError:
        return False
    return True


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_nobody_else_reads_state_segments_checkpoints_logs_the_store_or_the_channel(
    group, segments
):
    group.add_nodes(memory_bytes=100 * MIB)
    job = group.add_job(
        "a", iterations=200, rollout_s=1.0, train_s=0.1, held_bytes=30 * MIB, planned_bytes=MIB
    )
    group.up("--memory-look-s", "0.1", "--memory-pause-s", "100")
    group.wait_iteration(job, 2)
    folder = group.run_dir / job
    spilled = folder / "spill" / "emulated.state"
    spilled.parent.mkdir(mode=0o700, exist_ok=True)
    spilled.write_bytes(b"parked")

    database = Path(group.url.removeprefix("sqlite:///"))
    stores = [path for path in database.parent.iterdir() if path.name.startswith(database.name)]
    tag = parent.group_tag(group.url, live_group.GROUP, host=live_group.HOST)
    paths = [*below(folder, group.run_dir / "g-0001", valkey.temp_folder(tag)), *stores, *segments]
    paths = [path for path in paths if path.exists()]
    pids = [process.pid for process in processes.tagged(tag)]

    seen = " ".join(map(str, opened_by(0, paths, pids)))
    for kind in ("checkpoints/it-", "driver.json", "driver.log", "emulated.state", "/dev/shm/"):
        assert kind in seen, f"{kind} is there to be read, and its owner can"
    assert any(stat.S_ISSOCK(path.stat().st_mode) for path in paths)
    assert "rmux.db" in seen
    assert "/mem" in seen

    assert opened_by(NOBODY, paths, pids) == []
