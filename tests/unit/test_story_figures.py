"""The demo's arithmetic, on loops whose answer is known by hand."""

import importlib.util
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_spec = importlib.util.spec_from_file_location(
    "story_figures", ROOT / "scripts" / "story" / "figures.py"
)
figures = importlib.util.module_from_spec(_spec)
sys.modules["story_figures"] = figures
_spec.loader.exec_module(figures)


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
