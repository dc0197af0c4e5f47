"""Profiles on a real SQLite store: what is kept, and what wins."""

from __future__ import annotations

import json

import pytest

from rmux.cluster import Cluster
from rmux.errors import NotFoundError, UserError
from rmux.estimate import ProfileSource
from rmux.ids import numbered_ids
from rmux.job import EmulatedSpec, Engine, JobSpec
from rmux.profile.measure import Samples
from rmux.profile.service import profile_job
from rmux.store import pools, profiles
from rmux.store.engine import Store

EMULATED = JobSpec(
    name="e",
    engine=Engine.EMULATED,
    emulated=EmulatedSpec(rollout_s=2.0, train_s=1.0, sync_s=0.5, switch_s=0.1, jitter=0.1),
)


class Stopwatch:
    """A probe that ran already."""

    def __init__(self, rollout_s: float) -> None:
        self.rollout_s = rollout_s
        self.asked: list[int] = []

    def run(self, spec, *, cluster, iterations, on_progress=None):
        self.asked.append(iterations)
        return Samples(rollout_s=(self.rollout_s,), train_s=(1.0,))


@pytest.fixture
def store(tmp_path, samples):
    opened = Store.create(f"sqlite:///{tmp_path}/rmux.db")
    with opened.write() as conn:
        pools.save(conn, samples.cluster())
    yield opened
    opened.close()


@pytest.fixture
def model(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    config = {
        "hidden_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "vocab_size": 64,
    }
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


def test_an_emulated_job_is_profiled_from_its_spec(store):
    profile = profile_job(store, EMULATED, ids=numbered_ids())
    assert profile.rollout.worst_s == pytest.approx(2.2)
    assert profile.rollout.expected_s == 2.0
    assert profile.solo_s == pytest.approx(2.2 + 0.1 + 1.1 + 0.1 + 0.55)
    assert (profile.rollout_hardware, profile.train_hardware) == ("cpu", "cpu")


def test_a_profile_is_kept_and_found_again(store, model):
    spec = JobSpec(name="a", model_path=model)
    ids = numbered_ids()
    first = profile_job(store, spec, ids=ids)
    assert first.source is ProfileSource.ANALYTIC
    assert profile_job(store, JobSpec(name="b", model_path=model), ids=ids).id == first.id
    assert profile_job(store, spec, ids=ids, refresh=True).id != first.id
    with store.read() as conn:
        assert profiles.get(conn, first.id) == first


def test_a_measurement_beats_an_estimate_and_is_not_made_twice(store, model):
    spec, ids = JobSpec(name="a", model_path=model), numbered_ids()
    profile_job(store, spec, ids=ids)
    probe = Stopwatch(4.0)
    measured = profile_job(store, spec, ids=ids, probe=probe, iterations=3)
    assert (measured.source, measured.rollout.worst_s) == (ProfileSource.MEASURED, 4.0)
    assert profile_job(store, spec, ids=ids).id == measured.id
    assert profile_job(store, spec, ids=ids, probe=probe).id == measured.id
    assert probe.asked == [3]
    again = profile_job(store, spec, ids=ids, probe=Stopwatch(5.0), refresh=True)
    assert again.rollout.worst_s == 5.0


def test_looking_without_saving_leaves_nothing_behind(store):
    profile = profile_job(store, EMULATED, ids=numbered_ids(), save=False)
    with store.read() as conn, pytest.raises(NotFoundError):
        profiles.get(conn, profile.id)


def test_a_job_without_a_model_has_to_be_measured(store):
    spec = JobSpec(name="own", recipe=None, script="/x.py")
    with pytest.raises(UserError, match="names no model") as caught:
        profile_job(store, spec, ids=numbered_ids())
    assert "--measure" in caught.value.hint
    assert profile_job(store, spec, ids=numbered_ids(), probe=Stopwatch(1.0)).train.worst_s == 1.0


def test_a_pool_of_each_kind_is_needed(store):
    with pytest.raises(NotFoundError, match="no rollout pool"):
        profile_job(store, EMULATED, Cluster(pools=()), ids=numbered_ids())
