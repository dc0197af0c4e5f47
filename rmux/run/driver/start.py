"""What a driver does before the first line of user code: choose engines, initialise the pools."""

from __future__ import annotations

import threading
from dataclasses import dataclass
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
    """The device part of init: each pool as soon as all of its devices are granted, and for no
    longer than it takes, hence a thread for each. What the engines raise is raised here."""
    pools = {
        PoolKind.ROLLOUT: tuple(str(device) for device in config.placement.rollout),
        PoolKind.TRAIN: tuple(str(device) for device in config.placement.train),
    }
    wanted_s = SystemClock().now_s()
    link.want(Phase.INIT, iteration=iteration, devices=sum(pools.values(), ()))
    given_up = threading.Event()
    errors: list[Exception] = []

    def init(kind: PoolKind) -> None:
        try:
            found = None
            while found is None and not given_up.is_set():
                found = link.await_grants((pools[kind],), timeout_s=config.heartbeat_s)
            if found is not None:
                turn = _InitTurn(kind=kind, grants=found[0], wanted_s=wanted_s, granted_s=found[1])
                _init_pool(turn, link, engines, iteration=iteration)
        except Exception as error:  # noqa: BLE001 - see below
            # Raised in the main thread, where the driver ends.
            errors.append(error)
            given_up.set()

    threads = [
        threading.Thread(target=init, args=(kind,), name=f"init-{kind}", daemon=True)
        for kind in pools
    ]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        given_up.set()
    if errors:
        raise errors[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class _InitTurn:
    kind: PoolKind
    grants: tuple[Grant, ...]
    wanted_s: float
    granted_s: float


def _init_pool(turn: _InitTurn, link: Link, engines: Engines, *, iteration: int) -> None:
    clock = SystemClock()
    devices = [grant.device for grant in turn.grants]
    newest = max(turn.grants, key=lambda grant: grant.order)
    where: Any = {"iteration": iteration, "phase": Phase.INIT, "device": devices[0]}
    facts = {"pool": str(turn.kind), "devices": devices, "epoch": newest.epoch, "seq": newest.seq}
    begun_s = clock.now_s()
    start = {
        "wait_s": max(0.0, turn.granted_s - turn.wanted_s),
        "switch_s": 0.0,
        "overhead_s": begun_s - turn.granted_s,
    }
    link.emit(EventType.PHASE_START, **where, at_s=begun_s, data={**facts, **start})
    init_s = engines.init(turn.kind)
    ended_s = clock.now_s()
    link.parked(turn.grants, pids={d: engines.pids(DeviceId.parse(d)) for d in devices})
    overhead_s = clock.now_s() - turn.granted_s - init_s
    end = {
        "run_s": init_s,
        "park_s": 0.0,
        "overhead_s": overhead_s,
        "versions": engines.versions(),
    }
    link.emit(EventType.PHASE_END, **where, at_s=ended_s, data={**facts, **end})
