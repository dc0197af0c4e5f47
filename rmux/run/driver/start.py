"""What a driver does before the first line of user code: choose engines, initialise the pools."""

from __future__ import annotations

from typing import Any

from rmux.clock import SystemClock
from rmux.cluster import DeviceId, PoolKind
from rmux.events import EventType
from rmux.job import Engine, JobSpec, Phase
from rmux.run.driver.engines import DriverConfig, Engines
from rmux.run.driver.link import Link
from rmux.run.messages import Grant


def make_engines(config: DriverConfig) -> Engines:
    """The engines the spec asks for; none are started yet."""
    if config.spec.engine is Engine.EMULATED:
        from rmux.run.workers.emulated import EmulatedEngines

        return EmulatedEngines(config)
    if brings_own_engines(config.spec):
        from rmux.run.driver.own import OwnEngines

        return OwnEngines(config)
    from rmux.run.driver.ray_engines import RayEngines

    return RayEngines(config)


def brings_own_engines(spec: JobSpec) -> bool:
    """A script whose spec names no model: rmux starts no engine for it."""
    return spec.engine is Engine.REAL and spec.script is not None and not spec.model_path


def init_pools(config: DriverConfig, link: Link, engines: Engines, *, iteration: int) -> None:
    """The device part of init: each pool as soon as all of its devices are granted."""
    pools = {
        PoolKind.ROLLOUT: tuple(str(device) for device in config.placement.rollout),
        PoolKind.TRAIN: tuple(str(device) for device in config.placement.train),
    }
    wanted_s = SystemClock().now_s()
    link.want(Phase.INIT, iteration=iteration, devices=sum(pools.values(), ()))
    while pools:
        found = link.await_grants(tuple(pools.values()), timeout_s=config.heartbeat_s)
        if found is not None:
            grants, granted_s = found
            devices = tuple(grant.device for grant in grants)
            kind = next(kind for kind, wanted in pools.items() if wanted == devices)
            waited_s = max(0.0, granted_s - wanted_s)
            _init_pool(kind, grants, link, engines, iteration=iteration, wait_s=waited_s)
            del pools[kind]


def _init_pool(
    kind: PoolKind,
    grants: tuple[Grant, ...],
    link: Link,
    engines: Engines,
    *,
    iteration: int,
    wait_s: float,
) -> None:
    facts = {
        "pool": str(kind),
        "devices": [grant.device for grant in grants],
        "epoch": grants[-1].epoch,
        "seq": grants[-1].seq,
    }
    where: Any = {"iteration": iteration, "phase": Phase.INIT, "device": grants[0].device}
    start = {**facts, "wait_s": wait_s, "switch_s": 0.0, "overhead_s": 0.0}
    link.emit(EventType.PHASE_START, **where, data=start)
    init_s = engines.init(kind)
    devices = [DeviceId.parse(grant.device) for grant in grants]
    link.parked(grants, pids={str(device): engines.pids(device) for device in devices})
    end = {**facts, "run_s": init_s, "park_s": 0.0, "overhead_s": 0.0}
    link.emit(EventType.PHASE_END, **where, data=end)
