"""Time of replays, of the best packing beside them, of a simulated phase, of reading a trace."""

from __future__ import annotations

import io
import sys
import time
from pathlib import Path

from rmux.cluster import DeviceId
from rmux.group import CoExecGroup, Member, Placement
from rmux.ids import GroupId, JobId, NodeId
from rmux.place.sim import engine, recurrence, trace
from rmux.place.sim.bound import Bounder
from rmux.place.sim.durations import Fixed
from rmux.place.sim.policies.catalogue import Setting, make
from rmux.place.sim.replay import replay
from rmux.place.sim.workload import Drawing, Workload, profile_of
from rmux.place.sim.world import World
from scripts.benches._document import finish, flags, row

WINDOW = Path("tests/data/traces/philly_300jobs.csv")
POLICIES = ("rollmux-paper", "rollmux-static", "rollmux", "solo", "gavel")
ROUNDS = 500
ROWS = 1_000_000


def main() -> int:
    parser = flags(__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    asked = parser.parse_args()
    window = trace.load(str(WINDOW))
    took: dict[str, list[float]] = {}
    for seed in range(asked.seeds):
        jobs = list(Workload(window, Drawing(seed=seed)))
        setting = Setting(world=World(), seed=seed)
        for name in POLICIES:
            began_s = time.perf_counter()
            done = replay(jobs, make(name, setting), world=setting.world)
            took.setdefault(f"replay of 300 jobs, {name}", []).append(time.perf_counter() - began_s)
        began_s = time.perf_counter()
        Bounder(jobs, setting).of(done)
        took.setdefault("best packing at each of its events", []).append(
            time.perf_counter() - began_s
        )
    rows = [row(what, seconds, unit="s") for what, seconds in took.items()]
    rows += phases(asked.seeds)
    text = "job,arrival_s,duration_s,num_gpu\n" + "".join(f"{n},{n},3600,8\n" for n in range(ROWS))
    began_s = time.perf_counter()
    trace.read(io.BytesIO(text.encode()), name="made", columns="", source="", window="", sort=False)
    rows.append(row("reading a trace of 1,000,000 rows", [time.perf_counter() - began_s], unit="s"))
    finish("sim", rows, asked=asked)
    return 0


def phases(repeats: int) -> list[dict[str, object]]:
    """Seconds per phase of a group of four on one pair of nodes."""
    members = tuple(
        Member(
            job_id=JobId(f"j-{index}"),
            name=f"j-{index}",
            slo=4.0,
            profile=profile_of(5.0 + index, 3.0),
            placement=Placement(
                rollout=(DeviceId(NodeId("r0"), 0),), train=(DeviceId(NodeId("t0"), 0),)
            ),
        )
        for index in range(4)
    )
    nodes = (NodeId("r0"), NodeId("t0"))
    group = CoExecGroup(id=GroupId("g"), members=members, nodes=nodes)
    count = 2 * len(members) * ROUNDS
    found: dict[str, list[float]] = {"one phase, by events": [], "one phase, by recurrence": []}
    for _ in range(repeats):
        began_s = time.perf_counter()
        engine.run([group], engine.Options(iterations=ROUNDS))
        found["one phase, by events"].append((time.perf_counter() - began_s) / count)
        began_s = time.perf_counter()
        recurrence.times(group, iterations=ROUNDS, durations=Fixed())
        found["one phase, by recurrence"].append((time.perf_counter() - began_s) / count)
    return [row(what, seconds, unit="s") for what, seconds in found.items()]


if __name__ == "__main__":
    sys.exit(main())
