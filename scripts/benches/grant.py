"""Two emulated jobs on one pair of pools through the real processes: what rmux itself costs.

Each job first runs alone on the same devices, in the same run of the bench; the plan and the cap
come from those solo phases. Everything is read from the store's events afterwards.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rmux import timeline
from rmux.events import EventType, PhaseEvent
from rmux.ids import JobId
from rmux.job import Phase
from rmux.spec import load_spec
from scripts.benches._document import finish, flags, row
from scripts.story.figures import SoloLoop, gain_of, loop_of, steady_periods_s

EXAMPLES = Path("examples/emulated")
SPECS = ("long-rollout", "long-train")
_UP_S = 300.0
"""For one whole run of the processes."""

_DOWN_S = 60.0


class Run:
    """`rmux` against a store of its own, in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._env = os.environ | {
            "RMUX_STORE": f"sqlite:///{folder}/rmux.db",
            "RMUX_RUN_DIR": str(folder / "runs"),
            "RMUX_NO_INPUT": "1",
        }
        self._rmux = str(Path(sys.executable).parent / "rmux")

    def execute(self, specs: Sequence[str]) -> tuple[dict[str, JobId], list[PhaseEvent]]:
        """Runs these jobs to their end in one group; their ids by name, and all events."""
        self._command("store", "init")
        self._command("pool", "add", "-f", str(EXAMPLES / "cluster.toml"))
        jobs = [self._command("job", "submit", str(EXAMPLES / f"{name}.toml")) for name in specs]
        groups = {job["group"] for job in jobs}
        if len(groups) != 1 or None in groups:
            raise SystemExit(
                f"grant: the jobs are not in one group but in {sorted(map(str, groups))}"
            )
        self._up(jobs[0]["group"])
        ids = dict(zip(specs, (JobId(job["id"]) for job in jobs), strict=True))
        return ids, self._events(jobs[0]["group"])

    def _command(self, *args: str) -> dict[str, Any]:
        done = subprocess.run(
            [self._rmux, *args, "--json"], env=self._env, stdout=subprocess.PIPE, check=False
        )
        if done.returncode != 0:
            raise SystemExit(f"grant: rmux {' '.join(args)} ended with {done.returncode}")
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer

    def _up(self, group: str) -> None:
        log = self._folder / "up.log"
        with log.open("wb") as file:
            up = subprocess.Popen(
                [self._rmux, "group", "up", group], env=self._env, stdout=file, stderr=file
            )
            try:
                code = up.wait(_UP_S)
            finally:
                if up.poll() is None:
                    up.terminate()
                    up.wait(_DOWN_S)
        if code != 0:
            sys.stderr.write(log.read_text(errors="replace")[-4000:])
            raise SystemExit(f"grant: rmux group up ended with {code}")

    def _events(self, group: str) -> list[PhaseEvent]:
        from rmux.ids import GroupId
        from rmux.store import events
        from rmux.store.engine import Store

        store = Store.open(self._env["RMUX_STORE"])
        try:
            with store.read() as conn:
                return list(events.read(conn, group=GroupId(group), limit=10**6))
        finally:
            store.close()


def run(specs: Sequence[str]) -> tuple[dict[str, JobId], list[PhaseEvent]]:
    folder = Path(tempfile.mkdtemp(prefix="rmux-grant-"))
    try:
        return Run(folder).execute(specs)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def declared_s() -> float:
    """The period that the specs' own durations allow, as if nothing else took time."""
    phases = [load_spec(EXAMPLES / f"{name}.toml").emulated for name in SPECS]
    return max(
        max(each.rollout_s + each.train_s + each.sync_s for each in phases),
        sum(each.rollout_s for each in phases),
        sum(each.train_s for each in phases),
    )


def rows_of(
    solo: dict[str, SoloLoop], ids: dict[str, JobId], events: list[PhaseEvent]
) -> list[dict[str, Any]]:
    on_device = [event for event in events if event.phase in (Phase.ROLLOUT, Phase.TRAIN)]
    overheads = timeline.phase_data(on_device, "overhead_s", type=EventType.PHASE_END)
    proofs = timeline.phase_data(on_device, "proof_s", type=EventType.RELEASED)
    rows = [
        row("grant latency", timeline.grant_latencies_s(on_device), unit="s"),
        row("rmux's own time per rollout or train phase", _flat(overheads), unit="s"),
        row("proof that a device is idle", _flat(proofs), unit="s"),
    ]
    planned_s = max(
        max(loop.period_s for loop in solo.values()),
        sum(loop.rollout_s for loop in solo.values()),
        sum(loop.train_s for loop in solo.values()),
    )
    periods = timeline.iteration_seconds(events)
    steady = steady_periods_s(events)
    for name, loop in solo.items():
        own = periods[ids[name]]
        measured = {"solo": loop.period_s, "measured": steady[ids[name]]}
        for what, plan_s in (
            ("the plan from solo phases", planned_s),
            ("the plan from the spec's durations", declared_s()),
        ):
            rows.append(
                row(
                    f"{name}: iteration over {what}",
                    [period_s / plan_s for period_s in own],
                    unit="ratio",
                    seconds={"plan": plan_s, **measured},
                )
            )
    gain = gain_of(list(solo.values()), [steady[ids[name]] for name in solo])
    rows.append(
        row(
            "throughput per device over solo, share of the cap",
            [gain.share_of_cap],
            unit="ratio",
            seconds={f"{name}, solo": loop.period_s for name, loop in solo.items()}
            | {f"{name}, together": steady[ids[name]] for name in solo},
            facts={"gain": gain.gain, "cap": gain.cap},
        )
    )
    return rows


def _flat(values: dict[JobId, list[float]]) -> list[float]:
    return [value for each in values.values() for value in each]


def main() -> int:
    asked = flags(__doc__).parse_args()
    solo = {}
    for name in SPECS:
        _, events = run([name])
        solo[name] = loop_of(events)
        print(f"{name} alone: {solo[name].period_s:.4g} s", file=sys.stderr)
    ids, together = run(SPECS)
    finish("grant", rows_of(solo, ids, together), asked=asked)
    return 0


if __name__ == "__main__":
    sys.exit(main())
