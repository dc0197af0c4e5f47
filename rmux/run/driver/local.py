"""The same engines for a script that runs without rmux: on this host, awake all the time."""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import socket
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rmux.cluster import DeviceId, Node, PoolKind
from rmux.errors import UserError
from rmux.group import Placement
from rmux.ids import NodeId, PoolName, fresh_id
from rmux.job import JobSpec
from rmux.run.driver.engines import DriverConfig, Engines, Fleet, Sample, SyncReport, TrainReport
from rmux.run.driver.start import brings_own_engines, make_engines


class LocalEngines:
    """Started on first use, both pools awake; ends with the process."""

    def __init__(self, config: DriverConfig) -> None:
        self._engines = engines = make_engines(config)
        try:
            engines.prepare()
            for kind in PoolKind:
                engines.init(kind)
                engines.wake(kind)
        finally:
            # Registered after what the engines' libraries registered, hence called before it.
            atexit.register(_end, engines, config.run_dir)

    def fleet(self) -> Fleet:
        return self._engines.fleet()

    def trainer(self) -> LocalTrainer:
        return LocalTrainer(self._engines)


class LocalTrainer:
    def __init__(self, engines: Engines) -> None:
        self._engines = engines
        self._trainer = engines.trainer()

    def step(self, samples: Sequence[Sample]) -> TrainReport:
        return self._trainer.step(samples)

    def publish(self, fleet: Fleet) -> SyncReport:
        """Send the weights; the rollout engines take them in when they wake, so they do at once."""
        report = self._trainer.publish(fleet)
        self._engines.park(PoolKind.ROLLOUT)
        self._engines.wake(PoolKind.ROLLOUT)
        return report


def local_engines(spec: str | None) -> LocalEngines:
    """The engines of this process for the spec at that path, or at $RMUX_SPEC.

    UserError without a spec and when it names no model; SpecError for a bad one.
    """
    path = os.environ.get("RMUX_SPEC") if spec is None else spec
    if not path:
        raise UserError(
            "rmux.fleet() and rmux.trainer() need a spec outside rmux",
            hint='write rmux.fleet(spec="job.toml"), or set RMUX_SPEC',
        )
    return _started(os.path.abspath(path))


@functools.lru_cache(maxsize=1)
def _started(path: str) -> LocalEngines:
    from rmux.spec import load_spec

    spec = load_spec(path)
    if brings_own_engines(spec):
        raise UserError(
            f"{path} names no model, so there are no engines to start",
            hint="add [model] with its path",
        )
    return LocalEngines(_config(spec))


def _end(engines: Engines, folder: Path) -> None:
    engines.close()
    shutil.rmtree(folder, ignore_errors=True)


def _config(spec: JobSpec) -> DriverConfig:
    """As if this host were both pools; cores are left alone."""
    run_dir = Path(tempfile.mkdtemp(prefix="rmux-"))
    nodes = {PoolKind.ROLLOUT: spec.rollout.devices, PoolKind.TRAIN: spec.train.devices}
    devices = {
        kind: tuple(DeviceId(NodeId(f"local-{kind}"), index) for index in range(count))
        for kind, count in nodes.items()
    }
    return DriverConfig(
        job_id=fresh_id("j"),
        group_id="",
        attempt=1,
        spec=spec,
        placement=Placement(rollout=devices[PoolKind.ROLLOUT], train=devices[PoolKind.TRAIN]),
        nodes=tuple(_node(f"local-{kind}", str(kind), count) for kind, count in nodes.items()),
        run_dir=run_dir,
        temp_dir=run_dir,
        run_tag=run_dir.name,
        channel_url="",
        heartbeat_s=1.0,
        gates=(),
    )


def _node(name: str, pool: str, num_devices: int) -> Node:
    return Node(
        id=NodeId(name),
        pool=PoolName(pool),
        host=socket.gethostname(),
        device_kind="cpu",
        num_devices=num_devices,
        host_memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
    )
