"""Emulated rollouts by response lengths: what a spec says of them and what the plan makes of it."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from rmux.cluster import Cluster, Node, NodePool, PoolKind
from rmux.errors import SpecError
from rmux.ids import NodeId, PoolName, ProfileId
from rmux.profile.analytic import emulated
from rmux.spec import load_spec

TEXT = """
name = "tail"
engine = "emulated"

[rollout]
devices = 2
prompts = 30
samples_per_prompt = 1
max_tokens = 100
max_num_seqs = {seqs}

[emulated]
lengths = "lengths.csv:math"
step = "2ms"
per_sequence = "0.1ms"
jitter = 0.1
"""


def spec_in(folder: Path, *, seqs: int = 128, text: str = TEXT):
    (folder / "lengths.csv").write_text("set,tokens\nmath,5\n")
    file = folder / "job.toml"
    file.write_text(text.replace("{seqs}", str(seqs)))
    return load_spec(str(file))


def worst_s(spec) -> float:
    def pool(kind: PoolKind) -> NodePool:
        node = Node(
            id=NodeId(str(kind)),
            pool=PoolName(str(kind)),
            host="here",
            device_kind="cpu",
            num_devices=2,
            host_memory_bytes=2**30,
        )
        return NodePool(
            name=PoolName(str(kind)), kind=kind, hardware="cpu", usd_per_device_h=1.0, nodes=(node,)
        )

    rollout, train = pool(PoolKind.ROLLOUT), pool(PoolKind.TRAIN)
    profile = emulated(
        spec,
        cluster=Cluster(pools=(rollout, train)),
        rollout_pool=rollout,
        train_pool=train,
        profile_id=ProfileId("p-1"),
        spec_hash="x3:0",
        created_at=datetime.now(UTC),
    )
    return profile.rollout.worst_s


def test_lengths_are_found_beside_the_spec_and_keep_their_set(tmp_path):
    spec = spec_in(tmp_path)
    assert spec.emulated.lengths == f"{tmp_path.resolve() / 'lengths.csv'}:math"
    assert (spec.emulated.step_s, spec.emulated.per_seq_s) == (0.002, 0.0001)
    assert spec.migrates


def test_the_worst_case_has_every_response_at_the_limit(tmp_path):
    assert worst_s(spec_in(tmp_path)) == pytest.approx(1.1 * 100 * (0.002 + 15 * 0.0001))
    in_waves = worst_s(spec_in(tmp_path, seqs=6))
    assert in_waves == pytest.approx(1.1 * 3 * 100 * (0.002 + 6 * 0.0001))


def test_a_file_that_is_not_there_is_refused_with_its_line(tmp_path):
    with pytest.raises(SpecError, match=r"job\.toml:13"):
        spec_in(tmp_path, text=TEXT.replace("lengths.csv:math", "gone.csv:math"))


def test_a_step_takes_time(tmp_path):
    with pytest.raises(SpecError, match="step"):
        spec_in(tmp_path, text=TEXT.replace('"2ms"', '"0s"'))
