"""The demo's arithmetic, on loops whose answer is known by hand."""

import importlib.util
import re
import sys
from pathlib import Path

import pytest

import rmux

ROOT = Path(__file__).parents[2]


def _load(name):
    path = ROOT / "scripts" / "story" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"story_{name}", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


figures, sampler = _load("figures"), _load("sampler")


def loop(period_s, rollout_s, train_s):
    return figures.SoloLoop(period_s=period_s, rollout_s=rollout_s, train_s=train_s)


def test_two_balanced_jobs_without_overhead_double_the_throughput_per_device():
    gain = figures.gain_of([loop(10, 5, 5), loop(10, 5, 5)], [10, 10])
    assert gain.gain == pytest.approx(2.0)
    assert gain.cap == pytest.approx(2.0)


def test_the_cap_of_unbalanced_jobs_is_set_by_the_busier_pool():
    # rollouts 6 + 6 fill a 12 s round; each job alone takes 10 s
    gain = figures.gain_of([loop(10, 6, 4), loop(10, 6, 4)], [12.5, 12.5])
    assert gain.cap == pytest.approx(20 / 12)
    assert gain.gain == pytest.approx(1.6)
    assert gain.share_of_cap == pytest.approx(0.96)


def test_time_off_the_devices_counts_for_the_loop_and_not_for_the_pools():
    assert loop(10, 5, 4).off_device_s == pytest.approx(1.0)


def test_every_actor_that_a_driver_starts_is_counted_under_a_role_of_its_own():
    sources = (Path(rmux.__file__).parent / "run" / "driver").glob("*.py")
    started = {
        name
        for source in sources
        for name in re.findall(r"_session\.actor\(\s*(\w+)", source.read_text())
    }
    assert len(started) == 3
    assert started <= {mark for mark, _ in sampler._ROLES}
