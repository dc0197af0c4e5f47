"""Eight processes, one store: nothing is lost and no device is held twice, because of the lock."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

from rmux.store import jobs, pools, profiles
from rmux.store.engine import Store

WORKERS = 8
ROUNDS = 25
RACER = Path(__file__).with_name("store_race.py")


def race(store: Store, samples, folder: Path, *options: str) -> Counter[str]:
    with store.write() as conn:
        pools.save(conn, samples.cluster(rollout=3, train=3))
        profiles.save(conn, samples.profile())
        jobs.insert(conn, samples.job("j-counter", name="counter"))
        for n in range(WORKERS):
            jobs.insert(conn, samples.job(f"j-{n}", name=f"n{n}", profile="p-1"))
    children = [
        subprocess.Popen(
            [sys.executable, str(RACER), store.url, str(n), str(ROUNDS), str(folder), *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for n in range(WORKERS)
    ]
    (folder / "go").touch()
    total: Counter[str] = Counter()
    said = [child.communicate(timeout=240) for child in children]
    for child, (out, err) in zip(children, said, strict=True):
        assert child.returncode == 0, err
        total.update(json.loads(out))
    with store.read() as conn:
        total["lost"] = WORKERS * ROUNDS - jobs.get(conn, "j-counter").iteration
    return total


def test_eight_processes_lose_no_update_and_hold_nothing_twice(store, samples, tmp_path):
    result = race(store, samples, tmp_path)
    assert (result["lost"], result["twice"], result["refused"], result["errors"]) == (0, 0, 0, 0)
    assert result["taken"] > ROUNDS
    assert result["placed"] > ROUNDS
    with store.read() as conn:
        assert pools.holders(conn) == {}


def test_without_the_write_lock_the_same_race_loses_updates(store, samples, tmp_path):
    assert race(store, samples, tmp_path, "unlocked")["lost"] > 0


def test_many_processes_create_one_store_at_once(samples, tmp_path):
    url = f"sqlite:///{tmp_path}/deep/er/rmux.db"
    code = f"from rmux.store.engine import Store; Store.create({url!r}).close()"
    children = [
        subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True)
        for _ in range(WORKERS)
    ]
    said = [child.communicate(timeout=60)[1] for child in children]
    assert [child.returncode for child in children] == [0] * WORKERS, said
    store = Store.open(url)
    with store.write() as conn:
        pools.save(conn, samples.cluster())
    store.close()
