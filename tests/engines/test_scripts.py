"""The example scripts, as their users run them: alone, and as jobs of rmux."""

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from rmux.run.probe import GroupProbe
from rmux.spec import load_cluster, load_spec

EXAMPLES = Path(__file__).parents[2] / "examples"

pytestmark = pytest.mark.engines


def alone(script, **environ):
    """Rewards that the script prints without rmux."""
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "scripts" / script)],
        capture_output=True,
        text=True,
        timeout=240,
        env={**os.environ, **environ},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return [float(text) for text in re.findall(r"reward ([0-9.]+)", done.stdout)]


def measured(spec):
    host = socket.gethostname()
    cluster = load_cluster(EXAMPLES / "cpu" / "cluster.toml", host=host)
    loaded = load_spec(EXAMPLES / "scripts" / spec)
    return GroupProbe(host=host).run(loaded, cluster=cluster, iterations=2)


def test_the_script_with_its_own_engines_learns_alone():
    rewards = alone("own_engines.py")
    assert len(rewards) == 30
    assert rewards[0] < 0.3
    assert rewards[-1] > 0.9


def test_the_script_with_its_own_engines_runs_under_rmux():
    samples = measured("own_engines.toml")
    assert len(samples.rollout_s) == 2
    assert max(samples.rollout_s) < 5.0
    assert samples.engines == ()


def test_the_script_with_handles_runs_alone():
    assert len(alone("handles.py", RMUX_SPEC=str(EXAMPLES / "scripts" / "handles.toml"))) == 3


def test_the_script_with_handles_runs_under_rmux():
    samples = measured("handles.toml")
    assert len(samples.rollout_s) == 2
    assert {"vllm", "deepspeed"} <= {name for name, _ in samples.engines}
    assert samples.sync_bytes > 0
