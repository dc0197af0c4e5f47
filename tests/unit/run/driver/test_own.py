import os
import subprocess
import sys
import threading
from dataclasses import replace

import pytest

from rmux.cluster import DeviceId, PoolKind
from rmux.errors import UserError
from rmux.run.driver.own import OwnEngines


@pytest.fixture
def engines(make_config):
    core = min(os.sched_getaffinity(0))
    config = make_config()
    nodes = tuple(replace(node, cores=((core,), (core,))) for node in config.nodes)
    before = os.sched_getaffinity(0)
    yield OwnEngines(replace(config, nodes=nodes))
    os.sched_setaffinity(0, before)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_a_wake_pins_every_thread_to_the_cores_of_the_pool_and_a_park_frees_them(engines):
    before = os.sched_getaffinity(0)
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    engines.wake(PoolKind.TRAIN)
    pinned = os.sched_getaffinity(thread.native_id), os.sched_getaffinity(0)
    engines.park(PoolKind.TRAIN)
    freed = os.sched_getaffinity(thread.native_id)
    done.set()
    thread.join()
    assert pinned == ({min(before)}, {min(before)})
    assert freed == before


def test_the_whole_process_tree_must_be_idle(engines):
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        pids = engines.pids(DeviceId.parse("t/0"))
        child.communicate(b"\n")
    assert {os.getpid(), child.pid} <= set(pids)


def test_gpus_of_the_job_are_made_visible(make_config, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    config = make_config()
    nodes = tuple(replace(node, gpu_uuids=(f"GPU-{node.id}",)) for node in config.nodes)
    OwnEngines(replace(config, nodes=nodes))
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "GPU-r,GPU-t"
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")


@pytest.mark.parametrize("handle", ["fleet", "trainer"])
def test_there_are_no_handles(engines, handle):
    with pytest.raises(UserError, match="needs a model"):
        getattr(engines, handle)()
