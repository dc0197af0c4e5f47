from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from rmux.errors import CheckError, ConflictError, RmuxError, WorkerError
from rmux.run.workers.cache import (
    CachedWeights,
    CacheFiles,
    HostWeightCache,
    WeightEntry,
    checked,
    open_tensors,
    read_current,
)
from rmux.sync.transport.base import Endpoint
from rmux.sync.transport.tcp import send

TAG = f"rmux-test-{os.getpid()}"
ENTRIES = (
    WeightEntry(name="a", dtype="float32", shape=(4, 3), offset=0),
    WeightEntry(name="b", dtype="float32", shape=(5,), offset=48),
)


@pytest.fixture
def files() -> Iterator[CacheFiles]:
    names = CacheFiles.of(TAG, "r0")
    yield names
    assert [path for path in names.all if path.exists()] == []


@pytest.fixture
def cache(files: CacheFiles) -> Iterator[HostWeightCache]:
    one = HostWeightCache(run_tag=TAG, node="r0")
    yield one
    one.close()


def blob(fill: float) -> bytes:
    return np.full(17, fill, dtype=np.float32).tobytes()


def publish(cache: HostWeightCache, version: int, fill: float) -> CachedWeights:
    name = cache.begin(version, ENTRIES)
    endpoint = Endpoint.parse(cache.endpoint())
    sent = send(endpoint, memoryview(blob(fill)), transfer_id=name, deadline_s=5.0)
    return cache.commit(version, sent.checksum)


def test_a_committed_version_is_read_as_tensors_over_the_shared_memory(
    cache: HostWeightCache, files: CacheFiles
) -> None:
    publish(cache, 3, 1.5)
    weights, tensors = open_tensors(files)
    assert weights == cache.current() == read_current(files)
    assert weights.version == 3
    assert tensors["a"].shape == (4, 3)
    assert tensors["a"].tolist() == [[1.5] * 3] * 4
    assert tensors["b"].tolist() == [1.5] * 5


def test_a_version_is_invisible_until_it_is_committed(
    cache: HostWeightCache, files: CacheFiles
) -> None:
    publish(cache, 1, 1.0)
    name = cache.begin(2, ENTRIES)
    send(Endpoint.parse(cache.endpoint()), memoryview(blob(2.0)), transfer_id=name, deadline_s=5.0)
    weights, tensors = open_tensors(files)
    assert (weights.version, tensors["b"].tolist()) == (1, [1.0] * 5)


def test_what_is_read_is_checked_while_it_is_handed_out(
    cache: HostWeightCache, files: CacheFiles
) -> None:
    publish(cache, 1, 1.0)
    weights, tensors = open_tensors(files)
    assert [name for name, _ in checked(weights, tensors)] == ["a", "b"]
    tensors["b"][2] = 7.0  # of this mapping only
    handed = checked(weights, tensors)
    assert next(handed)[0] == "a"
    next(handed)
    with pytest.raises(CheckError, match="weight version 1 in the host cache has checksum"):
        next(handed)


def test_two_versions_count_during_a_sync_and_the_older_can_be_dropped(
    cache: HostWeightCache, files: CacheFiles
) -> None:
    publish(cache, 1, 1.0)
    one_bytes = cache.resident_bytes()
    publish(cache, 2, 2.0)
    slot_bytes = files.slot(0).stat().st_blocks * 512
    assert cache.resident_bytes() == one_bytes + slot_bytes
    assert cache.drop_older() == slot_bytes
    assert cache.resident_bytes() == one_bytes
    weights, tensors = open_tensors(files)
    assert (weights.version, tensors["b"].tolist()) == (2, [2.0] * 5)
    publish(cache, 3, 3.0)
    assert cache.resident_bytes() == one_bytes + slot_bytes


def test_what_arrives_damaged_never_becomes_current(
    cache: HostWeightCache, files: CacheFiles
) -> None:
    publish(cache, 1, 1.0)
    name = cache.begin(2, ENTRIES)
    send(Endpoint.parse(cache.endpoint()), memoryview(blob(2.0)), transfer_id=name, deadline_s=5.0)
    with pytest.raises(CheckError, match="weight version 2 arrived with checksum"):
        cache.commit(2, "0" * 32)
    current = read_current(files)
    assert current is not None
    assert current.version == 1


def test_a_reader_keeps_its_version_whole_while_two_newer_ones_arrive(
    cache: HostWeightCache, files: CacheFiles
) -> None:
    publish(cache, 1, 1.0)
    _, tensors = open_tensors(files)
    publish(cache, 2, 2.0)
    publish(cache, 3, 3.0)
    assert tensors["a"].tolist() == [[1.0] * 3] * 4
    _, newest = open_tensors(files)
    assert newest["a"].tolist() == [[3.0] * 3] * 4


def test_writing_to_what_was_read_does_not_change_the_cache(
    cache: HostWeightCache, files: CacheFiles
) -> None:
    publish(cache, 1, 1.0)
    _, tensors = open_tensors(files)
    tensors["a"].fill_(9.0)
    _, again = open_tensors(files)
    assert again["a"].tolist() == [[1.0] * 3] * 4


def test_an_unfinished_version_is_dropped_by_the_next_begin_also_under_the_same_number(
    cache: HostWeightCache, files: CacheFiles
) -> None:
    publish(cache, 1, 1.0)
    stale = Endpoint.parse(cache.endpoint())
    name = cache.begin(2, ENTRIES)
    publish(cache, 2, 2.0)
    with pytest.raises(RmuxError):
        send(stale, memoryview(blob(7.0)), transfer_id=name, deadline_s=0.5)
    weights, tensors = open_tensors(files)
    assert (weights.version, tensors["b"].tolist()) == (2, [2.0] * 5)


def test_only_the_version_being_received_can_be_committed(cache: HostWeightCache) -> None:
    with pytest.raises(ConflictError, match="weight version 1 is not being received"):
        cache.commit(1, "")
    cache.begin(2, ENTRIES)
    with pytest.raises(ConflictError):
        cache.commit(1, "")


def test_an_empty_cache_says_so(cache: HostWeightCache, files: CacheFiles) -> None:
    assert cache.current() is None
    assert read_current(files) is None
    with pytest.raises(WorkerError, match="is empty"):
        open_tensors(files)


def test_a_manifest_that_describes_no_blob_is_refused(cache: HostWeightCache) -> None:
    with pytest.raises(CheckError, match="0 tensors"):
        cache.begin(1, ())
    odd = WeightEntry(name="a", dtype="float32", shape=(1,), offset=2)
    with pytest.raises(CheckError, match="a: no tensor of float32 can lie at byte 2"):
        cache.begin(1, (odd,))
    with pytest.raises(CheckError, match="2 tensors end at byte 68 of 60"):
        cache.begin(1, ENTRIES, num_bytes=60)


def test_segments_are_private_named_in_advance_and_gone_after_close(files: CacheFiles) -> None:
    cache = HostWeightCache(run_tag=TAG, node="r0")
    publish(cache, 1, 1.0)
    publish(cache, 2, 2.0)
    made = [Path("/dev/shm") / name for name in os.listdir("/dev/shm") if TAG in name]
    assert set(made) <= set(files.all)
    assert len(made) == 3
    assert {stat.S_IMODE(path.stat().st_mode) for path in made} == {0o600}
    assert cache.resident_bytes() > 0
    cache.close()
    assert [path for path in made if path.exists()] == []


def test_names_of_odd_nodes_are_file_names() -> None:
    assert "/" not in CacheFiles.of("tag", "host/a b").stem
