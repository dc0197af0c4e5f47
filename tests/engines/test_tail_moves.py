"""A session's rollout on two real engines: its stragglers move together, token for token.

Two rollout devices on the two cores, and no train running.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rmux import phase
from rmux.cluster import PoolKind
from rmux.events import EventType, from_document
from rmux.job import Phase
from rmux.run.channel import MemoryChannel, MemoryHub
from rmux.run.driver import shim
from rmux.run.driver.engines import DriverConfig, Exactness, Response, Sampling
from rmux.run.driver.link import Link
from rmux.run.driver.ray_engines import RayEngines
from rmux.run.driver.session import Session
from rmux.run.messages import Grant, Permits, streams
from rmux.run.nexts import Next

PROMPTS = [[(5 * at + 3 * i) % 60 for i in range(12)] for at in range(24)]
STRAGGLERS = (3, 16)
LONG, SHORT = 600, 8


class OneGate:
    """Grants both devices; with `others` it tells that another job waits for them."""

    def __init__(self, hub: MemoryHub, config: DriverConfig, *, others: bool) -> None:
        self.channel, self.config, self.others = MemoryChannel(hub), config, others
        self.channel.subscribe([streams.driver_reports(config.job_id, "r0")])
        self.held: dict[str, Grant] = {}
        self.given: set[str] = set()
        self.parked: list[str] = []
        self.events: list[Any] = []
        self.open = True
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    def _serve(self) -> None:
        while self.open:
            for _, report in self.channel.receive(0.02):
                for use in report.uses:
                    if use.state == "parked" and use.device in self.held:
                        del self.held[use.device]
                        self.parked.append(use.device)
                for want in report.status.wants:
                    for device in want.devices:
                        if device not in self.given:
                            self._grant(device, want.phase)
                seen = {event.source_n for event in self.events}
                self.events += [
                    event
                    for event in map(from_document, report.events)
                    if event.source_n not in seen
                ]
            nexts = tuple(
                Next(
                    device=one.device,
                    epoch=one.epoch,
                    seq=one.seq,
                    job="j-other",
                    waits=True,
                    ready_s=0.0,
                    start_s=600.0,
                )
                for one in self.held.values()
            )
            permits = Permits(grants=tuple(self.held.values()), nexts=nexts if self.others else ())
            self.channel.send(streams.permits(self.config.job_id, "r0"), permits)

    def _grant(self, device: str, wanted: str) -> None:
        self.given.add(device)
        self.held[device] = Grant(
            device=device,
            epoch=1,
            seq=len(self.given),
            job=self.config.job_id,
            attempt=1,
            iteration=0,
            phase=wanted,
            bound_s=600.0,
        )

    def close(self) -> None:
        self.open = False
        self.thread.join()


@pytest.fixture(scope="module")
def engines(make_config: Callable[..., DriverConfig]) -> Iterator[RayEngines]:
    one = RayEngines(make_config(rollout_devices=2, max_num_seqs=32, max_tokens=LONG))
    try:
        one.prepare()
        one.init(PoolKind.ROLLOUT)
        yield one
    finally:
        one.close()


def roll_out(
    engines: RayEngines, *, others: bool, temperature: float
) -> tuple[list[Response], OneGate]:
    config = dataclasses.replace(engines._config, gates=("r0",), tail_trigger="0.8")
    config = dataclasses.replace(config, heartbeat_s=0.1)
    hub = MemoryHub()
    gate, link = OneGate(hub, config, others=others), Link(config, channel=MemoryChannel(hub))
    link.start()
    session = Session(config, link=link, engines=engines, save=lambda **_: None)
    shim.activate(session)

    @phase("rollout")
    def rollout() -> list[Response]:
        found: dict[int, Response] = {}
        with engines.fleet().stream() as stream:
            for key, prompt in enumerate(PROMPTS):
                tokens = LONG if key in STRAGGLERS else SHORT + key % 5
                sampling = Sampling(max_tokens=tokens, ignore_eos=True, temperature=temperature)
                stream.submit(key, prompt, sampling=sampling, seed=100 + key)
            while len(found) < len(PROMPTS):
                if taken := stream.next(1.0):
                    found[taken[0]] = taken[1]
        return [found[key] for key in range(len(PROMPTS))]

    try:
        responses = rollout()
    finally:
        shim.activate(None)
        link.end("succeeded", iteration=0, error="", acks_within_s=0.5)
        gate.close()
    return responses, gate


@pytest.mark.parametrize("temperature", [0.0, 1.0], ids=["greedy", "seeded"])
def test_stragglers_that_moved_have_the_tokens_of_a_run_without_a_move(
    engines: RayEngines, temperature: float
) -> None:
    kept, _ = roll_out(engines, others=False, temperature=temperature)
    moved, gate = roll_out(engines, others=True, temperature=temperature)
    [told] = [event for event in gate.events if event.type is EventType.TAIL_MOVED]
    assert (told.phase, told.data["requests"], told.data["exact"]) == (Phase.ROLLOUT, 1, 1)
    assert gate.parked[:1] == told.data["freed"], "its device came back before the others"
    assert 0 < told.data["tokens_carried"] < LONG
    for before, after in zip(kept, moved, strict=True):
        assert after.tokens == before.tokens
        assert after.exactness is Exactness.EXACT
        assert after.weight_version == before.weight_version
    assert [len(one.tokens) for one in moved] == [
        LONG if key in STRAGGLERS else SHORT + key % 5 for key in range(len(PROMPTS))
    ]
