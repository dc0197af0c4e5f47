"""One process of the store's race: counts, takes leases and places its job, `rounds` times over.

python store_race.py URL WORKER ROUNDS FOLDER [unlocked]

`unlocked` takes the write lock away from every transaction, which is how the drivers behave by
themselves; what the race loses then is what the lock is for. Prints one JSON line: how often a
lease or node was taken, how often it was found in another's hands, how often a decision made from
what was read was refused when it was written, how many errors the database raised.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from rmux.errors import ConflictError, RmuxError
from rmux.group import Assignment, Placement
from rmux.ids import GroupId, JobId, NodeId
from rmux.job import JobState
from rmux.store import engine, groups, jobs, leases, state
from rmux.store.engine import Store

DEVICES = [f"device:h20-0{index}/0" for index in range(4)]


def main(url: str, worker: str, rounds: int, folder: Path, *, unlocked: bool) -> dict[str, int]:
    store = Store.open(url, lock_timeout_s=60)
    if unlocked:
        sa.event.remove(store.engine, "begin", engine.begin)
    found = {"taken": 0, "placed": 0, "twice": 0, "refused": 0, "errors": 0}
    while not (folder / "go").exists():
        time.sleep(0.001)
    for turn in range(rounds):
        try:
            count(store)
            race_for_device(store, f"{worker}.{turn}", folder, found)
            race_for_node(store, JobId(f"j-{worker}"), f"{worker}.{turn}", folder, found)
        except (DBAPIError, RmuxError):
            found["errors"] += 1
    store.close()
    return found


def count(store: Store) -> None:
    """One read, one write of what was read plus one: lost if another wrote in between."""
    with store.write() as conn:
        job = jobs.get(conn, "j-counter")
        jobs.update(conn, job.id, iteration=job.iteration + 1)


def race_for_device(store: Store, owner: str, folder: Path, found: dict[str, int]) -> None:
    with store.write() as conn:
        lease = take_free(conn, owner)
    if lease is None:
        return
    found["taken"] += 1
    hold(folder / lease.name.replace("/", "_"), found)
    with store.write() as conn:
        leases.release(conn, lease)


def race_for_node(store: Store, job: JobId, turn: str, folder: Path, found: dict[str, int]) -> None:
    """Place the job on the first free node of each pool, hold them for a moment, give them back."""
    try:
        with store.write() as conn:
            nodes = place_on_free(conn, job, GroupId(f"g-{turn}"))
    except ConflictError:
        found["refused"] += 1
        return
    if not nodes:
        return
    found["placed"] += 1
    for node in nodes:
        hold(folder / node, found)
    with store.write() as conn:
        groups.remove_member(conn, job)
        jobs.set_state(conn, job, JobState.PENDING)


def place_on_free(conn: engine.Conn, job: JobId, group: GroupId) -> list[NodeId]:
    now = state.load(conn)
    free = [now.free_nodes(pool.name) for pool in now.cluster.pools]
    if not all(free):
        return []
    rollout, train = (nodes[0] for nodes in free)
    assignment = Assignment(
        job_id=job,
        group_id=None,
        placement=Placement(rollout=rollout.devices, train=train.devices),
        added_nodes=(rollout.id, train.id),
    )
    groups.apply(conn, assignment, expected_revision=now.revision, group_id=group)
    return [rollout.id, train.id]


def hold(mark: Path, found: dict[str, int]) -> None:
    """Own a file of that name for a moment; whoever finds it there has found it held twice."""
    try:
        os.close(os.open(mark, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        found["twice"] += 1
        return
    time.sleep(0.0005)
    mark.unlink()


def take_free(conn: engine.Conn, owner: str) -> leases.Lease | None:
    for name in DEVICES:
        try:
            return leases.take(conn, name, owner=owner, ttl_s=600, now_s=1.0, boot_id="boot")
        except ConflictError:
            continue
    return None


if __name__ == "__main__":
    url, worker, rounds, folder, *rest = sys.argv[1:]
    result = main(url, worker, int(rounds), Path(folder), unlocked=rest == ["unlocked"])
    sys.stdout.write(json.dumps(result) + "\n")
