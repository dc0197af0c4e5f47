"""Eight processes, one store: nothing is lost and no device is held twice, because of the lock."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

from rmux.cluster import Cluster, Node, NodePool, PoolKind
from rmux.ids import JobId, NodeId, PoolName
from rmux.job import Job, JobSpec, JobState
from rmux.store import jobs, pools
from rmux.store.engine import Store

WORKERS = 8
ROUNDS = 60
RACER = Path(__file__).with_name("store_race.py")


def race(store: Store, folder: Path, *options: str) -> dict[str, int]:
    with store.write() as conn:
        counter = Job(
            id=JobId("j-counter"),
            spec=JobSpec(name="counter"),
            spec_hash="x3:0",
            state=JobState.PENDING,
            created_at=datetime.now(UTC),
        )
        jobs.insert(conn, counter)
    children = [
        subprocess.Popen(
            [sys.executable, str(RACER), store.url, str(n), str(ROUNDS), str(folder), *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for n in range(WORKERS)
    ]
    (folder / "go").touch()
    total = {"taken": 0, "twice": 0, "errors": 0}
    for child in children:
        out, err = child.communicate(timeout=120)
        assert child.returncode == 0, err
        for key, value in json.loads(out).items():
            total[key] += value
    with store.read() as conn:
        counted = jobs.get(conn, "j-counter").iteration
    total["lost"] = WORKERS * ROUNDS - counted - total["errors"]
    return total


def test_eight_processes_lose_no_update_and_hold_no_device_twice(store, tmp_path):
    result = race(store, tmp_path)
    assert result["lost"] == 0
    assert result["twice"] == 0
    assert result["errors"] == 0
    assert result["taken"] > ROUNDS


def test_without_the_write_lock_the_same_race_loses_updates(store, tmp_path):
    result = race(store, tmp_path, "unlocked")
    assert result["lost"] > 0


def test_many_processes_create_one_store_at_once(tmp_path):
    url = f"sqlite:///{tmp_path}/deep/er/rmux.db"
    code = f"from rmux.store.engine import Store; Store.create({url!r}).close()"
    children = [
        subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True)
        for _ in range(WORKERS)
    ]
    for child in children:
        _, err = child.communicate(timeout=60)
        assert child.returncode == 0, err
    store = Store.open(url)
    with store.write() as conn:
        pools.save(conn, one_pool())
    store.close()


def one_pool() -> Cluster:
    name = PoolName("rollout")
    node = Node(
        id=NodeId("r0"),
        pool=name,
        host="here",
        device_kind="cpu",
        num_devices=1,
        host_memory_bytes=2**30,
    )
    pool = NodePool(
        name=name, kind=PoolKind.ROLLOUT, hardware="cpu", usd_per_device_h=1.0, nodes=(node,)
    )
    return Cluster(pools=(pool,))
