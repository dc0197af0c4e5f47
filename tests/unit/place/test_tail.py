"""When the stragglers of a rollout move together, and what that frees."""

from __future__ import annotations

import csv
import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rmux.cluster import DeviceId
from rmux.ids import NodeId
from rmux.place.lengths import Survival
from rmux.place.tail import Response, Rollout, Speed, TailDecision, TailDevice, decide

DATA = Path(__file__).parents[2] / "data" / "lengths" / "skythought.csv"
DEVICES = tuple(DeviceId(NodeId("r0"), index) for index in range(8))
LIMITS = {"27b-math500": 4096, "math-7b-math500": 5407}
"""The others ran to 32 k tokens, which their counts show as 31 k to 37 k."""


def device(index: int, **changes: Any) -> TailDevice:
    values = {"id": DEVICES[index], "hardware": "H20", "max_seqs": 32, "kv_tokens": 10**6}
    return TailDevice(**{**values, **changes})


def rollout(
    stragglers: Sequence[tuple[int, int]],
    devices: Sequence[TailDevice] | None = None,
    **changes: Any,
) -> Rollout:
    """Stragglers as (device, tokens so far)."""
    values: dict[str, Any] = {
        "total": 100,
        "unfinished": tuple(Response(device=DEVICES[d], tokens=n) for d, n in stragglers),
        "devices": tuple(devices or map(device, range(4))),
        "elapsed_s": 10.0,
        "next_ready_s": 0.0,
    }
    return Rollout(**{**values, **changes})


HISTORY = Survival.of([10] * 90 + [1000] * 10, limit_tokens=1000)
SPEED = Speed(step_s=0.01)


def ask(now: Rollout, **options: Any) -> TailDecision:
    return decide(now, **{"history": HISTORY, "speed": SPEED, **options})


def test_two_stragglers_move_together_when_a_job_waits_for_their_devices():
    found = ask(rollout([(0, 100), (2, 100)]))
    assert len(found.freed) == 3
    assert found.rest_s == pytest.approx(9.0)
    assert found.freed_device_s == pytest.approx(27.0)
    (home,) = found.homes.values()
    assert home not in found.freed


def test_devices_without_a_response_are_freed_without_moving_any():
    found = ask(rollout([(1, 100)]))
    assert set(found.freed) == {DEVICES[0], DEVICES[2], DEVICES[3]}
    assert found.homes == {}
    assert found.cost_device_s == 0.0


def test_nothing_moves_while_no_job_would_take_the_devices():
    found = ask(rollout([(0, 100), (2, 100)], next_ready_s=None))
    assert found.freed == ()
    assert found.reason == "no job will take the devices"


def test_a_move_waits_for_the_job_that_is_to_take_the_devices():
    found = ask(rollout([(0, 100), (2, 100)], next_ready_s=6.0))
    assert found.freed == ()
    assert found.reason == "the next job is ready in 6.0 s only"
    assert ask(rollout([(0, 100), (2, 100)], next_ready_s=0.0)).freed


def test_a_move_waits_where_a_later_one_of_fewer_responses_is_foreseen_to_gain_more():
    history = Survival.of([200] * 60 + [5000] * 40, limit_tokens=10_000)
    small = [device(index, max_seqs=8) for index in range(4)]
    stragglers = [(index % 4, 150) for index in range(24)]
    now = rollout(stragglers, small)
    dear = replace(SPEED, move_s=0.5)
    found = ask(now, history=history, speed=dear)
    assert found.freed == ()
    assert "is foreseen to gain" in found.reason
    later = rollout([(index % 4, 200) for index in range(9)], small)
    assert len(ask(later, history=history, speed=dear).freed) == 2


def test_a_delay_of_the_own_loop_counts_on_the_devices_given_before_too():
    held = [device(index) for index in range(2)]
    now = rollout([(0, 900), (1, 900)], held)
    paused = replace(SPEED, move_s=0.3)
    found = ask(now, speed=paused)
    assert found.freed
    assert found.cost_device_s == pytest.approx(2 * 0.3)
    assert ask(replace(now, given=6), speed=paused).freed == ()


def test_a_dear_prefill_keeps_the_stragglers_where_they_are():
    now = rollout([(index, 900) for index in range(4)])
    assert ask(now).freed
    dear = replace(SPEED, prefill_s_per_token=0.01)
    found = ask(now, speed=dear)
    assert found.freed == ()
    assert "gains" in found.reason
    assert "costs" in found.reason


def test_a_slower_step_with_more_sequences_keeps_some_devices():
    now = rollout([(index, 100) for index in range(4) for _ in range(8)])
    assert len(ask(now).freed) == 3
    slower = ask(now, speed=Speed(step_s=0.01, per_seq_s=0.001))
    assert len(slower.freed) < 3


def test_a_cache_too_small_for_all_stragglers_keeps_more_devices():
    small = [device(index, kv_tokens=2100) for index in range(4)]
    now = rollout([(index, 900) for index in range(4)], small)
    assert len(ask(now).freed) == 2
    tiny = [device(index, kv_tokens=1100) for index in range(4)]
    found = ask(rollout([(index, 900) for index in range(4)], tiny))
    assert found.freed == ()
    assert found.reason == "no smaller set of devices holds the tail"


def test_no_more_sequences_than_decode_together_are_put_on_a_device():
    few = [device(index, max_seqs=2) for index in range(4)]
    found = ask(rollout([(index, 900) for index in range(4)], few))
    assert len(found.freed) == 2
    homes = list(found.homes.values())
    assert all(homes.count(home) == 1 for home in homes)


def test_the_tail_stays_on_devices_that_no_other_job_needs():
    devices = [device(0, next_start_s=100.0), device(1), device(2, next_start_s=100.0), device(3)]
    found = ask(rollout([(0, 100), (2, 500)], devices))
    assert set(found.freed) >= {DEVICES[0], DEVICES[2]}


def test_a_tail_whose_worst_case_would_delay_the_next_jobs_planned_start_does_not_move():
    now = rollout([(0, 100), (1, 100)], [device(0, next_start_s=9.0), device(1, next_start_s=9.0)])
    assert ask(now).freed  # to the limit it takes 9 s as it is
    paused = ask(now, speed=replace(SPEED, move_s=0.1))
    assert paused.freed == ()
    slower = ask(now, speed=Speed(step_s=0.009, per_seq_s=0.001))
    assert slower.freed == ()
    assert ask(now, speed=replace(SPEED, move_s=0.1), trigger=0.8).freed == ()


def test_responses_move_between_devices_of_one_kind_only():
    mixed = [device(0), device(1, hardware="H800"), device(2), device(3, hardware="H800")]
    found = ask(rollout([(0, 100), (1, 100), (2, 100), (3, 100)], mixed))
    kinds = {one.id: one.hardware for one in mixed}
    unfinished = (0, 1, 2, 3)
    assert len(found.freed) == 2
    for index, home in found.homes.items():
        assert kinds[home] == kinds[DEVICES[unfinished[index]]]


def test_the_fixed_trigger_waits_for_its_share_and_moves_once():
    assert ask(rollout([(0, 100)] * 30), trigger=0.8).freed == ()
    found = ask(rollout([(0, 100), (1, 100)] * 10), trigger=0.8)
    assert len(found.freed) == 3
    again = ask(rollout([(0, 100), (1, 100)] * 10, moved_before=True), trigger=0.8)
    assert again.freed == ()
    assert "moved already" in again.reason


def test_a_finished_rollout_has_nothing_to_move():
    assert ask(rollout([])).reason == "every response is finished"


# Real lengths: 256 responses on 8 devices, time goes with length, moving costs nothing


def real_lengths() -> dict[str, list[int]]:
    sets = defaultdict(list)
    with DATA.open() as file:
        for row in csv.DictReader(file):
            limit = LIMITS.get(row["set"], 32_768)
            sets[row["set"]].append(min(int(row["approx_tokens"]), limit))
    return dict(sets)


def freed_share(batch: list[int], history: Survival, trigger: float | None) -> float:
    """Share of the rollout's device time that its moves free."""
    home = {index: DEVICES[index % 8] for index in range(len(batch))}
    held, freed, end = list(DEVICES), 0, max(batch)
    in_time = sorted(range(len(batch)), key=lambda index: batch[index])
    for count, index in enumerate(in_time[:-1], start=1):
        now = batch[index]
        rest = [other for other in in_time[count:] if batch[other] > now]
        if not rest or (trigger is None and count % 8):
            continue
        found = decide(
            Rollout(
                total=len(batch),
                unfinished=tuple(Response(device=home[other], tokens=now) for other in rest),
                devices=tuple(device(DEVICES.index(one), kv_tokens=10**9) for one in held),
                elapsed_s=float(now),
                next_ready_s=0.0,
                moved_before=len(held) < len(DEVICES),
            ),
            history=history,
            speed=Speed(step_s=1.0),
            trigger=trigger,
        )
        home |= {rest[place]: device_id for place, device_id in found.homes.items()}
        held = [one for one in held if one not in found.freed]
        freed += len(found.freed) * (end - now)
    return freed / (end * len(DEVICES))


def shares(lengths: list[int], trigger: float | None, *, batches: int = 4) -> float:
    rng = random.Random(1)
    history = Survival.of(lengths, limit_tokens=max(lengths))
    drawn = [rng.choices(lengths, k=256) for _ in range(batches)]
    return sum(freed_share(batch, history, trigger) for batch in drawn) / batches


BEST = {
    "14b-math500": 0.9,
    "32b-short-cot-aime24": 0.9,
    "math-7b-math500": 0.7,
    "32b-long-cot-aime24": 0.5,
    "27b-math500": 0.5,
}
NEAR_USELESS = {"32b-long-cot-aime24", "27b-math500"}


@pytest.mark.parametrize("name", BEST)
def test_real_lengths_want_triggers_of_their_own(name):
    lengths = real_lengths()[name]
    by_trigger = {q: shares(lengths, q, batches=4) for q in (0.5, 0.7, 0.8, 0.9, 0.95)}
    assert by_trigger[BEST[name]] > max(by_trigger.values()) - 0.03
    assert (by_trigger[0.8] < 0.15) == (name in NEAR_USELESS)


@pytest.mark.parametrize("name", BEST)
def test_the_predicted_gain_frees_more_than_the_best_fixed_trigger_on_real_lengths(name):
    lengths = real_lengths()[name]
    by_gain = shares(lengths, None)
    assert by_gain > shares(lengths, 0.8)
    assert by_gain > shares(lengths, BEST[name])
