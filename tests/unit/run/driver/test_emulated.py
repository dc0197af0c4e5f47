import os
import threading
from dataclasses import replace

import pytest

from rmux.cluster import DeviceId, PoolKind
from rmux.errors import WorkerError
from rmux.ids import NodeId
from rmux.job import EmulatedSpec
from rmux.run.driver.engines import Sample, Sampling
from rmux.run.workers.emulated import EmulatedEngines

PROMPTS = [(1, 2), (3,)]


@pytest.fixture
def make(make_config):
    made = []

    def make(seed=0, nap=None, **durations):
        spec = EmulatedSpec(**{"init_s": 0.0, "rollout_s": 0.0, "train_s": 0.0, **durations})
        made.append(EmulatedEngines(make_config(emulated=spec, seed=seed), nap=nap))
        return made[-1]

    yield make
    for engines in made:
        engines.close()


class Naps(list):
    """Takes no time, remembers how much it should have taken."""

    def __call__(self, duration_s):
        self.append(duration_s)
        return False


def generate(engines):
    return engines.fleet().generate(PROMPTS, sampling=Sampling())


def test_every_call_takes_the_time_its_spec_says(make):
    naps = Naps()
    engines = make(nap=naps, init_s=5.0, switch_s=2.0, sync_s=0.5, rollout_s=8.0, train_s=7.0)
    engines.init(PoolKind.TRAIN)
    engines.wake(PoolKind.ROLLOUT)
    responses = generate(engines)
    engines.park(PoolKind.ROLLOUT)
    engines.trainer().step([Sample(response=responses[0], advantage=0.0)])
    engines.trainer().publish(engines.fleet())
    assert naps == [5.0, 1.0, 8.0, 1.0, 7.0, 0.5]


def test_a_call_really_takes_its_time_and_tells_how_much(make):
    engines = make(init_s=0.02)
    assert 0.02 <= engines.init(PoolKind.TRAIN) < 1.0


def test_jitter_is_drawn_from_the_seed_the_iteration_and_the_phase(make):
    def drawn(seed):
        naps = Naps()
        engines = make(seed=seed, nap=naps, jitter=0.5, sync_s=1.0, rollout_s=1.0)
        for _ in range(3):
            generate(engines)
            engines.trainer().publish(engines.fleet())
        return naps

    assert drawn(1) == drawn(1)
    assert drawn(1) != drawn(2)
    assert len(set(drawn(1))) == 6
    assert all(0.5 <= seconds <= 1.5 for seconds in drawn(1))


def test_responses_follow_prompts_and_carry_the_weight_version(make):
    engines = make()
    assert [r.prompt_tokens for r in generate(engines)] == PROMPTS
    assert {r.weight_version for r in generate(engines)} == {0}
    assert engines.trainer().publish(engines.fleet()).version == 1
    assert {r.weight_version for r in generate(engines)} == {1}


def test_progress_ends_with_every_response(make):
    heard = []
    make().fleet().generate(PROMPTS * 4, sampling=Sampling(), on_progress=heard.append)
    assert [p["responses_done"] for p in heard] == [2, 4, 6, 8]


def test_what_was_saved_is_restored(make, tmp_path):
    engines = make()
    for _ in range(3):
        engines.trainer().publish(engines.fleet())
    size_bytes = engines.save(tmp_path / "state")
    assert size_bytes == sum(p.stat().st_size for p in (tmp_path / "state").iterdir())
    fresh = make()
    fresh.restore(tmp_path / "state")
    assert generate(fresh)[0].weight_version == 3


def test_each_device_has_a_worker_thread(make_config):
    config = make_config(rollout=("r/0", "r/1"), emulated=EmulatedSpec(rollout_s=0.02))
    engines = EmulatedEngines(replace(config))
    asleep = threading.Thread(target=generate, args=(engines,))
    asleep.start()
    threading.Event().wait(0.01)
    names = {thread.name for thread in threading.enumerate()}
    asleep.join()
    engines.close()
    assert {"emulated-rollout_0", "emulated-rollout_1"} <= names


def test_closing_ends_a_sleep_at_once(make):
    engines = make(rollout_s=30.0)
    threading.Timer(0.01, engines.close).start()
    with pytest.raises(WorkerError, match="closed while they worked"):
        generate(engines)


def test_the_driver_itself_must_be_idle_for_a_park(make):
    assert make().pids(DeviceId(NodeId("r"), 0)) == (os.getpid(),)
