"""Tenants, quotas, priorities, ageing and deadlines, from the command line through a real store."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest

from rmux.cli.main import main
from rmux.ids import fresh_id
from rmux.place import service
from rmux.store import schema
from rmux.store.engine import Store

POOLS = """
[pools.rollout]
kind = "rollout"
hardware = "cpu"
usd_per_device_h = 1.0
nodes = [{{name = "r[0-{last}]", devices = 1, host_memory = "8GiB"}}]

[pools.train]
kind = "train"
hardware = "cpu"
usd_per_device_h = 4.0
nodes = [{{name = "t[0-{last}]", devices = 1, host_memory = "8GiB"}}]
"""


class Bench:
    """A store of some nodes of each kind, with a policy and tenants, and its command line."""

    def __init__(self, folder, monkeypatch, capsys):
        self.folder, self.capsys = folder, capsys
        self.url = f"sqlite:///{folder}/rmux.db"
        monkeypatch.setenv("RMUX_STORE", self.url)
        monkeypatch.setenv("HOME", str(folder))
        monkeypatch.chdir(folder)

    def pools(self, nodes: int, sharing: str = "") -> None:
        (self.folder / "cluster.toml").write_text(POOLS.format(last=nodes - 1) + sharing)
        Store.create(self.url).close()
        assert self.run("pool", "add", "-f", "cluster.toml")[0] == 0

    def run(self, *argv: str):
        code = main(list(argv))
        out, err = self.capsys.readouterr()
        return code, out, err

    def submit(self, name: str, *flags: str, devices: int = 1, slo: float = 1.0, times=(4, 4)):
        """Submit a job of these seconds; its state and reason."""
        (self.folder / f"{name}.toml").write_text(
            f'name = "{name}"\nengine = "emulated"\nslo = {slo}\n'
            f"[rollout]\ndevices = {devices}\n[train]\ndevices = {devices}\n"
            "micro_batch = 1\n"
            f'[emulated]\nrollout = "{times[0]}s"\ntrain = "{times[1]}s"\nsync = "0s"\n'
        )
        code, out, err = self.run("job", "submit", f"{name}.toml", *flags, "--json")
        assert code == 0, err
        found = json.loads(out)
        return found["state"], found["reason"]

    def states(self) -> dict[str, str]:
        items = json.loads(self.run("job", "ls", "--json")[1])["items"]
        return {one["name"]: one["state"] for one in items}

    def reason(self, name: str) -> dict[str, str]:
        return json.loads(self.run("job", "show", name, "--json")[1])["reason"]

    def tenants(self) -> dict[str, dict[str, float]]:
        found = json.loads(self.run("pool", "tenants", "--json")[1])
        total = sum(one["usd_per_h"] for one in found["items"])
        assert total == pytest.approx(found["bill_usd_per_h"], rel=1e-9)
        return {one["name"]: one for one in found["items"]}

    def age(self, **by) -> None:
        """Make every job as much older."""
        store = Store.open(self.url)
        with store.write() as conn:
            for row in conn.execute(schema.jobs.select()).all():
                changed = schema.jobs.update().where(schema.jobs.c.id == row.id)
                conn.execute(changed.values(created_at=row.created_at - timedelta(**by)))
        store.close()

    def settle(self) -> None:
        store = Store.open(self.url)
        service.settle_pending(store, ids=fresh_id)
        store.close()


@pytest.fixture
def bench(tmp_path, monkeypatch, capsys):
    return Bench(tmp_path, monkeypatch, capsys)


QUOTA = "\n[tenants.math]\nquota_usd_per_h = 8.0\n[tenants.code]\n"


def test_a_quota_keeps_a_job_waiting_until_another_of_its_tenant_ends(bench):
    bench.pools(3, QUOTA)
    assert bench.submit("m1", "--tenant", "math")[0] == "placed"
    state, reason = bench.submit("m2", "--tenant", "math", times=(5, 5))
    assert (state, reason["code"]) == ("pending", "quota")
    assert "8.00 USD/h, charged 5.00 USD/h" in reason["message"]
    assert "quota_usd_per_h = 10.00 would do" in bench.run("job", "why", "m2")[1]
    assert bench.submit("c1", "--tenant", "code", times=(6, 6))[0] == "placed"
    assert bench.tenants()["math"]["usd_per_h"] == 5.0
    bench.run("job", "cancel", "m1", "--now")
    bench.settle()
    assert bench.states()["m2"] == "placed"
    assert bench.tenants()["math"]["usd_per_h"] == 5.0


def test_a_higher_quota_lets_the_job_in(bench):
    bench.pools(3, QUOTA)
    bench.submit("m1", "--tenant", "math")
    assert bench.submit("m2", "--tenant", "math", times=(5, 5))[0] == "pending"
    (bench.folder / "cluster.toml").write_text(POOLS.format(last=2) + QUOTA.replace("8.0", "10.0"))
    assert bench.run("pool", "add", "-f", "cluster.toml")[0] == 0
    assert bench.states()["m2"] == "placed"


def test_joining_for_nothing_counts_against_a_quota_by_its_share(bench):
    bench.pools(1, "\n[tenants.math]\nquota_usd_per_h = 2.0\n[tenants.code]\n")
    assert bench.submit("c1", "--tenant", "code", slo=3.0)[0] == "placed"
    state, reason = bench.submit("m1", "--tenant", "math", slo=3.0)
    assert (state, reason["code"]) == ("pending", "quota")
    assert "add 2.50 USD/h" in reason["message"]
    assert bench.submit("m2", "--tenant", "math", slo=9.0, times=(1, 1))[0] == "placed"
    assert bench.tenants()["math"]["usd_per_h"] == pytest.approx(1.0)


def fill_and_queue(bench, sharing: str) -> None:
    """One pair of nodes, held; a low job waits for it, then a high one comes."""
    bench.pools(1, sharing)
    assert bench.submit("holder")[0] == "placed"
    assert bench.submit("low", times=(5, 5))[0] == "pending"
    bench.age(hours=2)
    assert bench.submit("high", "--priority", "3", times=(6, 6))[0] == "pending"


def test_the_higher_priority_is_placed_first(bench):
    fill_and_queue(bench, "")
    bench.run("job", "cancel", "holder", "--now")
    bench.settle()
    states = bench.states()
    assert (states["high"], states["low"]) == ("placed", "pending")


def test_with_ageing_the_job_that_waited_long_is_placed_first(bench):
    fill_and_queue(bench, '\n[policy]\nageing = "30m"\n')
    bench.run("job", "cancel", "holder", "--now")
    bench.settle()
    states = bench.states()
    assert (states["high"], states["low"]) == ("pending", "placed")


def crowd(bench, sharing: str) -> None:
    """Three pairs, one of them free; a job of two pairs has waited for an hour."""
    bench.pools(3, sharing)
    assert bench.submit("h1")[0] == "placed"
    assert bench.submit("h2", times=(5, 5))[0] == "placed"
    assert bench.submit("big", devices=2, times=(6, 6))[0] == "pending"
    bench.age(hours=1)


def test_small_jobs_slip_past_a_big_one_without_ageing(bench):
    crowd(bench, "")
    assert bench.submit("small", times=(7, 7))[0] == "placed"
    bench.run("job", "cancel", "h1", "--now")
    bench.settle()
    assert bench.states()["big"] == "pending"


def test_with_ageing_a_big_job_keeps_its_start_and_the_small_one_is_told(bench):
    crowd(bench, '\n[policy]\nageing = "10m"\n')
    state, reason = bench.submit("small", times=(7, 7))
    assert (state, reason["code"]) == ("pending", "reserved")
    assert "kept for big" in reason["message"]
    assert "big" in bench.run("job", "why", "small")[1]
    bench.settle()
    assert bench.reason("small")["code"] == "reserved"
    bench.run("job", "cancel", "h1", "--now")
    bench.settle()
    states = bench.states()
    assert (states["big"], states["small"]) == ("placed", "pending")
    bench.run("job", "cancel", "h2", "--now")
    bench.settle()
    assert bench.states()["small"] == "placed"


def test_the_tenant_with_less_is_served_first(bench):
    bench.pools(2, "\n[tenants.math]\n[tenants.code]\n")
    assert bench.submit("m1", "--tenant", "math")[0] == "placed"
    assert bench.submit("n1", times=(5, 5))[0] == "placed"
    assert bench.submit("m2", "--tenant", "math", times=(6, 6))[0] == "pending"
    assert bench.submit("c1", "--tenant", "code", times=(7, 7))[0] == "pending"
    bench.run("job", "cancel", "n1", "--now")
    bench.settle()
    states = bench.states()
    assert (states["c1"], states["m2"]) == ("placed", "pending")


def test_by_default_the_oldest_is_served_first_whatever_its_tenant(bench):
    bench.pools(2)
    bench.submit("m1", "--tenant", "math")
    bench.submit("n1", times=(5, 5))
    bench.submit("m2", "--tenant", "math", times=(6, 6))
    bench.submit("c1", "--tenant", "code", times=(7, 7))
    bench.run("job", "cancel", "n1", "--now")
    bench.settle()
    states = bench.states()
    assert (states["c1"], states["m2"]) == ("pending", "placed")


def test_a_deadline_takes_nodes_of_its_own_where_joining_would_be_late(bench):
    bench.pools(2)
    bench.submit("long", slo=3.0, times=(20, 20))
    bench.submit("patient", slo=12.0, times=(2, 2))
    bench.submit("due", "--deadline", "2m", slo=12.0, times=(2, 2))
    items = json.loads(bench.run("group", "ls", "--json")[1])["items"]
    together = [sorted(member["name"] for member in one["members"]) for one in items]
    assert sorted(together) == [["due"], ["long", "patient"]]
    assert "in time" in bench.run("job", "why", "due")[1]


def test_an_hour_old_deadline_is_told_as_missed(bench):
    bench.pools(1)
    bench.submit("due", "--deadline", "2m")
    bench.age(hours=1)
    assert "after its deadline of 2m00s" in bench.run("job", "why", "due")[1]
