"""A job is measured through the real processes, on emulated engines of known durations."""

import socket
from pathlib import Path

import pytest

from rmux.clock import SystemClock, boot_id
from rmux.cluster import Cluster, Link, Node, NodePool, PoolKind
from rmux.errors import UnavailableError, WorkerError
from rmux.ids import NodeId, PoolName
from rmux.job import EmulatedSpec, Engine, JobSpec
from rmux.run.probe import GroupProbe
from rmux.store import leases
from rmux.store.engine import Store

HOST = socket.gethostname()


@pytest.fixture(autouse=True)
def temp(tmp_path, monkeypatch):
    """What the probe leaves behind would be seen here."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    monkeypatch.setenv("TMPDIR", str(folder))
    return folder


def cluster():
    def pool(name, kind):
        node = Node(
            id=NodeId(f"{name}-0"),
            pool=PoolName(name),
            host=HOST,
            device_kind="cpu",
            num_devices=1,
            host_memory_bytes=2**34,
        )
        return NodePool(
            name=PoolName(name), kind=kind, hardware="cpu", usd_per_device_h=1.0, nodes=(node,)
        )

    pools = (pool("roll", PoolKind.ROLLOUT), pool("train", PoolKind.TRAIN))
    return Cluster(pools=pools, links=(Link(source="train", target="roll", rate_bps=1e10),))


def emulated(**durations):
    return JobSpec(name="small", engine=Engine.EMULATED, emulated=EmulatedSpec(**durations))


def test_the_samples_are_the_durations_of_the_engines_and_nothing_stays(temp):
    spec = emulated(init_s=0.2, rollout_s=0.3, train_s=0.15, sync_s=0.05, switch_s=0.06)
    told = []
    samples = GroupProbe(host=HOST).run(
        spec, cluster=cluster(), iterations=3, on_progress=told.append
    )
    expected_s = {
        "rollout_s": 0.3,
        "train_s": 0.15,
        "sync_s": 0.05,
        "rollout_switch_s": 0.06,
        "train_switch_s": 0.06,
    }
    for name, seconds in expected_s.items():
        seen = getattr(samples, name)
        assert len(seen) == 3
        # A loaded machine is late, never early.
        assert all(seconds <= one < seconds + 1.0 for one in seen), (name, seen)
    assert len(samples.checkpoint_s) == 3
    assert 0.2 <= samples.init_s < 1.2
    assert samples.rollout_cold_s > samples.init_s
    assert samples.engines[0][0] == "emulated"
    assert samples.train_resident_bytes > 10 * 2**20
    assert told[-1] == "iteration 4 of 4"
    assert [path.name for path in temp.iterdir() if path.name.startswith("rmux-probe")] == []


def test_a_job_that_fails_says_why():
    spec = JobSpec(name="broken", recipe=None, script="/nonexistent/job.py")
    with pytest.raises(WorkerError, match="did not get through") as raised:
        GroupProbe(host=HOST).run(spec, cluster=cluster(), iterations=1)
    assert "/nonexistent" in raised.value.details["stderr"]


def test_nodes_that_another_measurement_holds_are_unavailable(tmp_path: Path):
    store = Store.create(f"sqlite:///{tmp_path}/rmux.db")
    with store.write() as conn:
        now_s = SystemClock().now_s()
        other = "elsewhere b:1:2"
        leases.take(conn, "node:roll-0", owner=other, ttl_s=30.0, now_s=now_s, boot_id=boot_id())
    try:
        with pytest.raises(UnavailableError, match="roll-0 is being measured"):
            GroupProbe(host=HOST, store=store).run(emulated(), cluster=cluster(), iterations=1)
    finally:
        store.close()
