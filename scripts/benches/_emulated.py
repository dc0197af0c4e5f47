"""The emulated half of the co-execution bench: every mix alone and together, plan and simulator."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from rmux import timeline
from rmux.events import PhaseEvent, from_document, to_document
from rmux.job import Phase
from rmux.place.period import period
from rmux.run import rehearsal
from scripts.benches._document import row
from scripts.benches._mixes import HOST, MIXES, Mix, cluster_of, group_of
from scripts.benches._replayed import mean_iterations_s, measured, simulated_s

_AT_ONCE = 4
"""Groups beside each other: each takes a few hundredths of a core."""
_SOLO_ROUNDS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Live:
    events: tuple[PhaseEvent, ...]
    violations: int
    errors: tuple[str, ...]


def rows(*, rounds: int, names: Sequence[str] = ()) -> list[dict[str, Any]]:
    """A row per mix. SystemExit when a group failed."""
    mixes = [mix for mix in MIXES if not names or any(name in mix.name for name in names)]
    alone = [solo for mix in mixes for solo in mix.alone()]
    with ThreadPoolExecutor(_AT_ONCE) as runs:
        solos = dict(zip((m.name for m in alone), runs.map(_alone, alone), strict=True))
        lives = list(runs.map(lambda mix: _live(mix, rounds), mixes))
    return [_row(mix, live, solos) for mix, live in zip(mixes, lives, strict=True)]


def _alone(mix: Mix) -> Live:
    return _live(mix, _SOLO_ROUNDS)


def _live(mix: Mix, rounds: int) -> Live:
    """In a process of its own: a group is brought up from a main thread."""
    command = [sys.executable, "-m", "scripts.benches._emulated", mix.name, str(rounds)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=False)
    if done.returncode:
        raise SystemExit(f"co-execution: {mix.name} ended with {done.returncode}")
    found = json.loads(done.stdout)
    live = Live(
        events=tuple(from_document(each) for each in found["events"]),
        violations=found["violations"],
        errors=tuple(found["errors"]),
    )
    if live.errors or live.violations:
        raise SystemExit(f"co-execution: {mix.name}: {live.errors or live.violations}")
    return live


def _row(mix: Mix, live: Live, solos: Mapping[str, Live]) -> dict[str, Any]:
    group = group_of(mix)
    together_s = mean_iterations_s(live.events)
    alone = {job: solos[solo.name] for job, solo in zip(mix.jobs, mix.alone(), strict=True)}
    alone_s = {f"j-{job.name}": _mean(one) for job, one in alone.items()}
    solo_phases = {key: s for one in alone.values() for key, s in measured(one.events).items()}
    plan = period(group.members, order=group.round)
    gain = _per_device(mix, {job: alone_s[job] / seconds for job, seconds in together_s.items()})
    cap = _per_device(mix, {job: seconds / plan.period_s for job, seconds in alone_s.items()})
    iterations = len(timeline.iteration_seconds(live.events)[group.members[0].job_id])
    replayed_s = simulated_s(group, measured(live.events), iterations=iterations)
    foreseen_s = simulated_s(group, solo_phases, iterations=iterations)
    on_device = [e for e in live.events if e.phase in (Phase.ROLLOUT, Phase.TRAIN)]
    latencies_s = timeline.grant_latencies_s(on_device)
    return row(
        f"{mix.name}: throughput per device-hour over dedicated devices",
        [gain],
        unit="ratio",
        seconds={
            **{f"{job.removeprefix('j-')} alone": s for job, s in alone_s.items()},
            **{f"{job.removeprefix('j-')} together": s for job, s in together_s.items()},
            "planned period": plan.period_s,
        },
        facts={
            "share of the cap": gain / cap,
            "slowest mean iteration ÷ planned period": max(together_s.values()) / plan.period_s,
            "hand-over, p50 ms": 1000 * statistics.median(latencies_s),
            "simulator from the phases measured together, largest error": _error(
                replayed_s, together_s
            ),
            "simulator from the phases alone, largest error": _error(foreseen_s, together_s),
        },
        keys={"engine": "emulated", "gain_per_device_hour": gain, "gain_cap": cap},
    )


def _mean(one: Live) -> float:
    (seconds,) = mean_iterations_s(one.events).values()
    return seconds


def _per_device(mix: Mix, rates: Mapping[str, float]) -> float:
    """Iterations per device-hour over those on devices of one's own, weighed by devices."""
    return sum(rates[f"j-{job.name}"] * job.num_devices for job in mix.jobs) / mix.num_devices


def _error(found_s: Mapping[Any, float], live_s: Mapping[Any, float]) -> float:
    return max(abs(found_s[job] / seconds - 1) for job, seconds in live_s.items())


def main(name: str, rounds: str) -> int:
    """One group, its events to stdout."""
    known = {mix.name: mix for each in MIXES for mix in (each, *each.alone())}
    mix = known[name]
    done = rehearsal.rehearse(group_of(mix), cluster_of(mix), rounds=int(rounds), host=HOST)
    document = {
        "events": [to_document(event) for event in done.events],
        "violations": len(done.violations),
        "errors": [one.error for one in done.members if one.error],
    }
    json.dump(document, sys.stdout)
    return done.status


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
