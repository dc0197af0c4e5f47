"""Stragglers that move together: throughput of two jobs with and without, live and simulated.

Two emulated jobs share four rollout devices and one train device in a real group: controller,
runners, drivers. Their responses are as long as those of real models, scaled to 1000 tokens. Each
pair runs three times at once: no moves, by predicted gain, at 80 % of the responses. Beside it what
the simulator foretells; at the end two real engines, whether a moved token is missing or differs.
About five minutes; --quick takes one and leaves the real engines out.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rmux.errors import UnreachableError
from rmux.events import EventType
from rmux.group import Assignment
from rmux.job import Job, JobState
from rmux.run import parent
from rmux.run.trace_check import check
from rmux.store import events, groups, jobs, pools, profiles
from rmux.store.engine import Store
from scripts.benches import tail_real
from scripts.benches._document import finish, flags, row
from scripts.benches._replayed import mean_iterations_s
from scripts.benches._tail_pairs import (
    GROUP,
    HOST,
    PAIRS,
    QUICK,
    ROLLOUT_S,
    TRAIN_S,
    Pair,
    cluster,
    group_of,
    scaled,
    simulated_rates,
    spec_of,
)

TRIGGERS: dict[str, float | None] = {"gain": None, "0.8": 0.8}
_AT_ONCE = 3
"""Pairs beside each other, three groups each."""
_SIMULATED = 24
_POLL_S = 0.2


def rows(*, iterations: int, repeats: int, pairs: Sequence[Pair]) -> list[dict[str, Any]]:
    """Two rows per pair, one per trigger. SystemExit when a group failed."""
    tasks = [(pair, seed) for pair in pairs for seed in range(repeats)]
    with ThreadPoolExecutor(_AT_ONCE) as runs:
        found = list(runs.map(lambda task: _three(*task, iterations=iterations), tasks))
    made = []
    for place, pair in enumerate(pairs):
        made += _rows_of(pair, found[place * repeats : (place + 1) * repeats])
    return made


def _three(pair: Pair, seed: int, *, iterations: int) -> dict[str, Any]:
    """The pair with each trigger, side by side."""
    with ThreadPoolExecutor(len(TRIGGERS) + 1) as runs:
        names = ("off", *TRIGGERS)
        done = runs.map(lambda name: _child(pair, name, seed, iterations), names)
        return dict(zip(names, done, strict=True))


def _child(pair: Pair, trigger: str, seed: int, iterations: int) -> dict[str, Any]:
    """In a process of its own: a group is brought up from a main thread."""
    command = [sys.executable, "-m", "scripts.benches.tail", "--live"]
    command += [pair.name, trigger, str(seed), str(iterations)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=False)
    if done.returncode:
        raise SystemExit(f"tail: {pair.name} with {trigger} ended with {done.returncode}")
    found: dict[str, Any] = json.loads(done.stdout)
    if found["errors"] or found["violations"]:
        raise SystemExit(f"tail: {pair.name}: {found['errors'] or found['violations']}")
    return found


def _rows_of(pair: Pair, lives: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    foreseen = [
        simulated_rates(pair, TRIGGERS, iterations=_SIMULATED, seed=seed)
        for seed in range(len(lives))
    ]
    made = []
    for name in TRIGGERS:
        gains = [live[name]["rate"] / live["off"]["rate"] for live in lives]
        told = [rates[name] / rates["off"] for rates in foreseen]
        words = "by predicted gain" if name == "gain" else "at 80 % of the responses"
        made.append(
            row(
                f"{pair.name}, {words}: throughput with moved stragglers over without",
                gains,
                unit="ratio",
                seconds={
                    "iteration with": statistics.median(2 / live[name]["rate"] for live in lives),
                    "iteration without": statistics.median(
                        2 / live["off"]["rate"] for live in lives
                    ),
                    "planned rollout": ROLLOUT_S,
                    "planned train": TRAIN_S,
                },
                facts={
                    "simulator": statistics.median(told),
                    "moves per iteration": statistics.median(
                        live[name]["moves"] / live[name]["iterations"] for live in lives
                    ),
                },
                keys={
                    "engine": "emulated",
                    "trigger": name,
                    "gain": statistics.median(gains),
                    "gain_simulated": statistics.median(told),
                },
            )
        )
    return made


def live(pair: Pair, trigger: str, seed: int, iterations: int) -> int:
    """One group, what became of it to stdout."""
    with tempfile.TemporaryDirectory(prefix="rmux-tail-") as folder:
        url = f"sqlite:///{folder}/rmux.db"
        store = Store.create(url)
        try:
            _fill(store, pair, Path(folder), seed=seed)
            over = threading.Event()
            watch = threading.Thread(target=_end_after, args=(store, iterations, over))
            watch.start()
            try:
                status = parent.run(
                    url, GROUP, host=HOST, run_dir=Path(folder) / "runs", tail_trigger=trigger
                )
            finally:
                over.set()
                watch.join()
            json.dump(_outcome(store), sys.stdout)
        finally:
            store.close()
    return status


def _fill(store: Store, pair: Pair, folder: Path, *, seed: int) -> None:
    group = group_of(pair)
    with store.write() as conn:
        pools.save(conn, cluster())
        for place, member in enumerate(group.members):
            lengths = folder / f"lengths-{place}"
            lengths.write_text("\n".join(map(str, scaled(pair.sets[place]))))
            profiles.save(conn, member.profile)
            job = Job(
                id=member.job_id,
                spec=spec_of(place, lengths, iterations=10**6, seed=seed),
                spec_hash=member.profile.spec_hash,
                state=JobState.PENDING,
                created_at=datetime.now(UTC),
                profile_id=member.profile.id,
            )
            jobs.insert(conn, job)
            assignment = Assignment(
                job_id=member.job_id,
                group_id=GROUP if place else None,
                placement=member.placement,
                added_nodes=() if place else group.nodes,
            )
            expected = groups.revision(conn)
            groups.apply(conn, assignment, expected_revision=expected, group_id=GROUP)


def _end_after(store: Store, iterations: int, over: threading.Event) -> None:
    """Take the group down when each job has its iterations or has ended."""
    while not over.wait(_POLL_S):
        try:
            with store.read() as conn:
                now = jobs.ls(conn)
            if all(job.iteration >= iterations or job.state.is_terminal for job in now):
                with store.write() as conn:
                    groups.set_desired(conn, GROUP, "down")
                return
        except UnreachableError:
            continue  # locked for long; the next look may find it free


def _outcome(store: Store) -> dict[str, Any]:
    with store.read() as conn:
        found = events.read(conn, group=GROUP, limit=1_000_000)
        ended = jobs.ls(conn)
    means_s = mean_iterations_s(found)
    return {
        "rate": sum(1 / seconds for seconds in means_s.values()),
        "iterations": sum(event.type is EventType.ITERATION_END for event in found),
        "moves": sum(event.type is EventType.TAIL_MOVED for event in found),
        "violations": len(check(found)),
        "errors": [job.error for job in ended if job.state is JobState.FAILED],
    }


def main(argv: Sequence[str]) -> int:
    if argv[:1] == ["--live"]:
        name, trigger, seed, iterations = argv[1:]
        pair = next(pair for pair in PAIRS if pair.name == name)
        return live(pair, trigger, int(seed), int(iterations))
    parser = flags(__doc__)
    parser.add_argument("--quick", action="store_true", help="two pairs, a few iterations")
    parser.add_argument("--iterations", type=int, help="of each job, the first two not counted")
    parser.add_argument("--repeats", type=int, help="runs of each pair")
    asked = parser.parse_args(argv)
    iterations = asked.iterations or (8 if asked.quick else 10)
    pairs = [pair for pair in PAIRS if not asked.quick or pair.name in QUICK]
    repeats = asked.repeats or (1 if asked.quick else 2)
    made = rows(iterations=iterations, repeats=repeats, pairs=pairs)
    if not asked.quick:
        made += tail_real.rows()
    finish("tail", made, asked=asked)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
