"""What is removed after an attempt, on the disk of its home node."""

from __future__ import annotations

from rmux.run.driver.engines import SPILL_FOLDER
from rmux.run.runner.launch import Site, clear


def test_state_that_was_on_disk_when_its_attempt_ended_is_removed(tmp_path):
    run_dir = tmp_path / "j-1"
    spilled, kept = run_dir / SPILL_FOLDER / "rank-0.state", run_dir / "checkpoints" / "it-000001"
    for file in (spilled, kept):
        file.parent.mkdir(parents=True)
        file.write_bytes(b"state")
    site = Site(group="g-1", tag="rx-cleared", run_dir=tmp_path, channel_url="", heartbeat_s=1.0)
    clear(site, "j-1", 1, run_dir=run_dir)
    assert not spilled.exists()
    assert kept.exists()
