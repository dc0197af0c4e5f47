"""A gate that grants whatever its driver wants, and the configuration of a small job."""

import os
import threading
from pathlib import Path

import pytest

from rmux.cluster import DeviceId, Node
from rmux.events import from_document
from rmux.group import Placement
from rmux.ids import NodeId, PoolName
from rmux.job import EmulatedSpec, Engine, JobSpec
from rmux.run.channel import MemoryChannel, MemoryHub
from rmux.run.driver.engines import DriverConfig
from rmux.run.driver.loop import run_driver
from rmux.run.messages import Grant, Permits, streams

JOB = "j-1"
HEARTBEAT_S = 0.05


def node(name, pool):
    return Node(
        id=NodeId(name),
        pool=PoolName(pool),
        host="here",
        device_kind="cpu",
        num_devices=2,
        host_memory_bytes=2**30,
    )


@pytest.fixture
def make_config(tmp_path):
    def make(*, rollout=("r/0",), train=("t/0",), attempt=1, **spec):
        durations = EmulatedSpec(init_s=0.001, rollout_s=0.002, train_s=0.002, sync_s=0.0)
        spec = {"engine": Engine.EMULATED, "emulated": durations, "iterations": 2, **spec}
        return DriverConfig(
            job_id=JOB,
            group_id="g-1",
            attempt=attempt,
            spec=JobSpec(name="small", **spec),
            placement=Placement(
                rollout=tuple(DeviceId.parse(device) for device in rollout),
                train=tuple(DeviceId.parse(device) for device in train),
            ),
            nodes=(node("r", "rollout"), node("t", "train")),
            run_dir=tmp_path / "run",
            temp_dir=Path("/tmp"),
            run_tag="tag",
            channel_url="memory",
            heartbeat_s=HEARTBEAT_S,
            gates=("r", "t"),
        )

    return make


class Gate:
    """Both gates of the job at once. `grant` by hand, or `serve` from a thread."""

    def __init__(self, hub, *, attempt=1, epoch=1, acks=True):
        self.channel = MemoryChannel(hub)
        self.channel.subscribe([streams.driver_reports(JOB, name) for name in ("r", "t")])
        self.attempt, self.epoch, self.acks = attempt, epoch, acks
        self.desired = "run"
        self.seq = 0
        self.open = {}
        self.ended = {}
        self.report = None
        self.states = []
        self.events = {}
        self._stop = threading.Event()
        self._thread = None

    def grant(self, device, phase, iteration, *, seq=None, epoch=None, attempt=None):
        self.seq = self.seq + 1 if seq is None else seq
        self.open[device] = Grant(
            device=device,
            epoch=self.epoch if epoch is None else epoch,
            seq=self.seq,
            job=JOB,
            attempt=self.attempt if attempt is None else attempt,
            iteration=iteration,
            phase=phase,
            bound_s=60.0,
        )
        self.announce()

    def announce(self):
        source = f"{JOB}/{self.attempt}"
        stored = max((n for attempt, n in self.events if attempt == source), default=0)
        acks = ((source, stored),) if self.acks else ()
        for name in ("r", "t"):
            grants = tuple(g for device, g in self.open.items() if device.startswith(name))
            permits = Permits(grants=grants, desired=self.desired, acks=acks)
            self.channel.send(streams.permits(JOB, name), permits)

    def hear(self, timeout_s=1.0):
        """Read reports until one arrives; the newest one."""
        for stream, report in self.channel.receive(timeout_s):
            self.report = report
            # The two streams say the same, each in order.
            if stream.endswith(":t:reports") and report.status.state not in self.states[-1:]:
                self.states.append(report.status.state)
            for document in report.events:
                self.events[document["source"], document["source_n"]] = from_document(document)
        return self.report

    def serve(self):
        self._stop.clear()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def stop(self):
        self._stop.set()
        if self._thread:
            self._thread.join()

    def of_type(self, kind, phase=None):
        found = [self.events[n] for n in sorted(self.events)]
        return [e for e in found if e.type == kind and phase in (None, e.phase)]

    def _serve(self):
        while not self._stop.is_set():
            report = self.hear(timeout_s=0.02)
            if report is None:
                continue
            for use in report.uses:
                held = self.open.get(use.device)
                if held and use.state == "parked" and (use.epoch, use.seq) == held.order:
                    self.ended[use.device] = (held, use)
                    del self.open[use.device]
            for want in report.status.wants:
                for device in want.devices:
                    if device not in self.open:
                        self.grant(device, want.phase, want.iteration)
            self.announce()


@pytest.fixture
def hub():
    return MemoryHub()


@pytest.fixture
def gate(hub):
    gate = Gate(hub)
    yield gate
    gate.stop()


@pytest.fixture
def drive(hub, gate, monkeypatch):
    for name in ("RMUX_START_ITERATION", "RMUX_ITERATIONS", "RMUX_RUN_DIR"):
        monkeypatch.setenv(name, "unset")
    monkeypatch.chdir(os.getcwd())

    def drive(config):
        monkeypatch.setattr("sys.argv", ["driver"])
        monkeypatch.setattr("sys.path", list(os.sys.path))
        gate.attempt = config.attempt
        gate.serve()
        code = run_driver(config, channel=MemoryChannel(hub))
        gate.stop()
        gate.hear(timeout_s=0.0)
        return code

    return drive


@pytest.fixture
def script(tmp_path):
    def write(text):
        path = tmp_path / "job.py"
        path.write_text(text)
        return str(path)

    return write
