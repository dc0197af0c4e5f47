"""Jobs that share devices against devices of their own: real engines, then emulated mixes.

The real half is the demo's pair of jobs (about six minutes), the emulated one thirteen groups of 2
to 5 jobs on 1 to 4 rollout nodes (about ten). Nothing else should run on the machine.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from rmux.cluster import DeviceId
from rmux.events import EventType, PhaseEvent, from_document
from rmux.group import CoExecGroup, Placement, member_of
from rmux.ids import JobId
from rmux.job import Phase
from rmux.store import events, groups, jobs, profiles
from rmux.store.engine import Store
from scripts.benches import _emulated
from scripts.benches._document import finish, flags, row
from scripts.benches._replayed import mean_iterations_s, measured, simulated_s

_MOST_EVENTS = 1_000_000


def demo(*, iterations: int | None) -> dict[str, Any]:
    """The document of one run of the demo, its run folder kept; its own words go to stderr."""
    command = [sys.executable, "-m", "story.flow", "--json", "--keep"]
    if iterations is not None:
        command += ["--iterations", str(iterations)]
    done = subprocess.run(
        command, env=os.environ | {"PYTHONPATH": "scripts"}, stdout=subprocess.PIPE, check=False
    )
    if done.returncode not in (0, 7):
        raise SystemExit(f"co-execution: the demo ended with {done.returncode}")
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def real_rows(doc: dict[str, Any]) -> list[dict[str, Any]]:
    solo = {f"{job['name']}, solo": job["solo_iteration_s"] for job in doc["jobs"]}
    both = solo | {f"{job['name']}, together": job["coexec_iteration_s"] for job in doc["jobs"]}
    gain, cap = doc["gain_per_device_hour"], doc["gain_cap"]
    rows = [
        row(
            "throughput per device-hour over dedicated pools",
            [gain],
            unit="ratio",
            seconds=both,
            facts={
                "share of the cap": gain / cap,
                "iterations": min(job["iterations"] for job in doc["jobs"]),
                **simulated(Path(doc["run_dir"]), [job["name"] for job in doc["jobs"]]),
                "foreign CPU, of one core": doc["foreign_cpu"],
            },
            keys={"engine": "real", "gain_per_device_hour": gain, "gain_cap": cap},
        )
    ]
    rows += [_slowed(job, doc["samples"]["iteration_s"][job["name"]]) for job in doc["jobs"]]
    for pool in ("rollout", "train"):
        cold_s, warm_s = doc[pool]["cold_start_s"], doc[pool]["warm_switch_s"]
        rows.append(
            row(
                f"{pool}: warm switch over cold start",
                [warm_s / cold_s],
                unit="ratio",
                seconds={"cold": cold_s, "warm": warm_s},
                facts={"CPU of a parked worker, of one core": doc["parked_cpu"][pool]},
            )
        )
    samples = doc["samples"]
    rows.append(row("grant latency", samples["grant_latency_s"], unit="s"))
    rows.append(row("rmux's own time per rollout or train phase", samples["overhead_s"], unit="s"))
    rows.append(
        row("weight sync", samples["sync_s"], unit="s", facts={"bytes": doc["sync"]["bytes"]})
    )
    return rows


def _slowed(job: dict[str, Any], iterations_s: list[float]) -> dict[str, Any]:
    alone_s = job["solo_iteration_s"]
    return row(
        f"{job['name']}: slowdown, iteration over the median alone",
        [seconds / alone_s for seconds in iterations_s],
        unit="ratio",
        seconds={"solo": alone_s, "together": job["coexec_iteration_s"]},
        facts={
            "planned": job["planned_slowdown"],
            "over the plan": job["slowdown"] / job["planned_slowdown"],
            "SLO": job["slo"],
            "reward, first": job["reward_first"],
            "reward, last": job["reward_last"],
        },
    )


def simulated(folder: Path, names: list[str]) -> dict[str, float]:
    """How far the simulator is from the live group's mean iteration, by the phases it is given."""
    group, together = _recorded(folder)
    live_s = mean_iterations_s(together)
    iterations = min(
        sum(event.job_id == job and event.type is EventType.ITERATION_END for event in together)
        for job in live_s
    )
    alone: dict[Any, Any] = {}
    ids = {member.name: member.job_id for member in group.members}
    for name in names:
        lines = (folder / f"{name}-alone.jsonl").read_text().splitlines()
        phases = measured([from_document(json.loads(line)) for line in lines if line])
        alone |= {(ids[name], phase): seconds for (_, phase), seconds in phases.items()}
    errors = {}
    for given, seconds in (("together", measured(together)), ("alone", alone)):
        found_s = simulated_s(group, seconds, iterations=iterations)
        errors[f"simulator from the phases measured {given}, largest error"] = max(
            abs(found_s[job] / live_s[job] - 1) for job in live_s
        )
    return errors


def _recorded(folder: Path) -> tuple[CoExecGroup, list[PhaseEvent]]:
    """The group with the members it had while it ran, and its events."""
    store = Store.open(f"sqlite:///{folder}/rmux.db")
    try:
        with store.read() as conn:
            (group,) = groups.ls(conn, all=True)
            together = events.read(conn, group=group.id, limit=_MOST_EVENTS)
            members = tuple(
                member_of(
                    job.spec,
                    profiles.get(conn, job.profile_id),
                    job_id=job.id,
                    placement=_placement(job.id, together),
                )
                for job in jobs.ls(conn)
                if job.profile_id is not None
            )
            return replace(group, members=members), together
    finally:
        store.close()


def _placement(job_id: JobId, together: list[PhaseEvent]) -> Placement:
    """Members are forgotten as they end; the devices they were granted are on record."""

    def of(phase: Phase) -> tuple[DeviceId, ...]:
        granted = {
            event.device
            for event in together
            if event.type is EventType.GRANT and (event.job_id, event.phase) == (job_id, phase)
        }
        return tuple(DeviceId.parse(device) for device in sorted(granted - {None}))

    return Placement(rollout=of(Phase.ROLLOUT), train=of(Phase.TRAIN))


def main() -> int:
    parser = flags(__doc__)
    parser.add_argument("--engine", choices=("real", "emulated"), help="only this half")
    parser.add_argument("--iterations", type=int, help="of each real job; default the specs' 15")
    parser.add_argument("--rounds", type=int, default=10, help="of each emulated group")
    parser.add_argument("--mix", action="append", default=[], help="only mixes of this name")
    asked = parser.parse_args()
    rows = []
    if asked.engine != "emulated":
        doc = demo(iterations=asked.iterations)
        try:
            rows += real_rows(doc)
        finally:
            shutil.rmtree(doc["run_dir"], ignore_errors=True)
    if asked.engine != "real":
        rows += _emulated.rows(rounds=asked.rounds, names=asked.mix)
    finish("co-execution", rows, asked=asked)
    return 0


if __name__ == "__main__":
    sys.exit(main())
