"""One process of the store's race: takes devices and counts, `rounds` times over.

python store_race.py URL WORKER ROUNDS FOLDER [unlocked]

`unlocked` takes the write lock away from every transaction, which is how the drivers behave by
themselves; what the race loses then is what the lock is for. Prints one JSON line: how often a
device was taken, how often it was found in another's hands, how many errors the database raised.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from rmux.errors import ConflictError
from rmux.store import engine, jobs, leases
from rmux.store.engine import Store

DEVICES = [f"device:h20-0{index}/0" for index in range(4)]


def main(url: str, worker: str, rounds: int, folder: Path, *, unlocked: bool) -> dict[str, int]:
    store = Store.open(url, lock_timeout_s=60)
    if unlocked:
        sa.event.remove(store.engine, "begin", engine.begin)
    found = {"taken": 0, "twice": 0, "errors": 0}
    while not (folder / "go").exists():
        time.sleep(0.001)
    for turn in range(rounds):
        try:
            count(store)
            race_for_device(store, f"{worker}.{turn}", folder, found)
        except DBAPIError:
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
    mark = folder / lease.name.replace("/", "_")
    try:
        os.close(os.open(mark, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        found["twice"] += 1
        return
    time.sleep(0.0005)
    mark.unlink()
    with store.write() as conn:
        leases.release(conn, lease)


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
