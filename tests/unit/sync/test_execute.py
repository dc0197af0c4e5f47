"""Plans carried out inside one process: same bytes everywhere, or one error and no hang."""

from __future__ import annotations

import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from rmux.errors import BackendError, DeadlineError, RmuxError, UnreachableError
from rmux.sync.deadline import Deadline
from rmux.sync.execute import RankReport, run_rank
from rmux.sync.plan import Plan, Rank, Topology, plan
from rmux.sync.transport.base import Endpoint, Progress
from rmux.sync.transport.checksum import RollingChecksum, checksum
from rmux.sync.transport.memory import MemoryTransport

KIB = 2**10


def run(
    made: Plan, source: bytes, deadline_s: float = 20.0, absent: Rank | None = None
) -> tuple[dict[Rank, RankReport | RmuxError], dict[Rank, bytearray]]:
    transport = MemoryTransport()
    inboxes = {rank: transport.listen("memory") for rank in made.targets}
    endpoints = {rank: inbox.endpoint() for rank, inbox in inboxes.items()}
    blobs: dict[Rank, bytearray] = {rank: bytearray(source) for rank in made.sources}
    blobs.update({rank: bytearray(made.size_bytes) for rank in made.targets})

    def part(rank: Rank) -> RankReport | RmuxError:
        try:
            return run_rank(
                made,
                rank,
                memoryview(blobs[rank]),
                sync_id="v1",
                transport=transport,
                inbox=inboxes.get(rank),
                endpoints=endpoints,
                deadline_s=deadline_s,
                chunk_bytes=KIB,
            )
        except RmuxError as error:
            return error

    present = [rank for rank in blobs if rank != absent]
    with ThreadPoolExecutor(len(present)) as pool:
        reports = dict(zip(present, pool.map(part, present), strict=True))
    return reports, {rank: blobs[rank] for rank in made.targets}


@pytest.mark.parametrize("topology", list(Topology))
@pytest.mark.parametrize(("sources", "targets"), [(1, 1), (2, 2), (3, 5), (8, 2)])
def test_every_target_ends_with_the_sources_bytes(
    topology: Topology, sources: int, targets: int
) -> None:
    size_bytes = 37 * KIB + 11
    source = random.Random(7).randbytes(size_bytes)
    made = plan(topology, size_bytes=size_bytes, num_sources=sources, num_targets=targets)
    reports, copies = run(made, source)
    done = {rank: report for rank, report in reports.items() if isinstance(report, RankReport)}
    assert len(done) == sources + targets
    assert all(copy == source for copy in copies.values())
    assert sum(report.link_bytes for report in done.values()) == made.link_bytes
    for report in done.values():
        assert report.ended_s >= report.begun_s
        for each in (*report.sent, *report.received):
            begin, end = each.step.shard.begin, each.step.shard.end
            assert each.result.checksum == checksum(source[begin:end])
            assert each.result.bytes == end - begin


def test_a_missing_source_costs_a_deadline_and_is_no_success() -> None:
    made = plan(Topology.HIER, size_bytes=64 * KIB, num_sources=2, num_targets=2)
    source = random.Random(7).randbytes(made.size_bytes)
    reports, _ = run(made, source, deadline_s=0.2, absent=made.sources[0])
    starved = [report for rank, report in reports.items() if rank in made.targets]
    assert all(isinstance(report, (DeadlineError, UnreachableError)) for report in starved)
    assert any(isinstance(report, DeadlineError) for report in starved)


def test_one_step_that_fails_ends_the_rank_at_once() -> None:
    """The other source never comes; its step is not waited for."""
    made = plan(Topology.HIER, size_bytes=64 * KIB, num_sources=2, num_targets=1)
    transport = MemoryTransport()
    inbox = transport.listen("memory")
    broken = Progress()
    broken.fail(UnreachableError("lost its own source"))
    with ThreadPoolExecutor(1) as pool:
        begun_s = time.monotonic()
        part = pool.submit(
            run_rank,
            made,
            made.targets[0],
            memoryview(bytearray(made.size_bytes)),
            sync_id="v1",
            transport=transport,
            inbox=inbox,
            endpoints={},
            deadline_s=20,
        )
        with pytest.raises(UnreachableError):
            transport.send(
                inbox.endpoint(),
                memoryview(bytes(made.steps[0].shard.num_bytes)),
                transfer_id=f"v1/{made.steps[0].id}",
                deadline_s=20,
                progress=broken,
            )
        with pytest.raises(UnreachableError):
            part.result(20)
    assert time.monotonic() - begun_s < 5


def test_memory_refuses_a_wrong_token_and_an_unknown_address() -> None:
    transport = MemoryTransport()
    real = transport.listen("memory").endpoint()
    forged = Endpoint(host=real.host, port=real.port, token="0")
    with pytest.raises(BackendError, match="token"):
        transport.send(forged, memoryview(b"x"), transfer_id="w", deadline_s=1)
    nowhere = Endpoint(host=real.host, port=99, token="0")
    with pytest.raises(UnreachableError, match="memory:99"):
        transport.send(nowhere, memoryview(b"x"), transfer_id="w", deadline_s=1)


def test_a_checksum_follows_chunks_that_finish_in_any_order() -> None:
    data = random.Random(3).randbytes(10 * KIB + 5)
    progress = Progress()
    rolling = RollingChecksum(memoryview(data), chunk_bytes=KIB, progress=progress)
    indexes = list(range(rolling.num_chunks))
    random.Random(4).shuffle(indexes)
    indexes.remove(0)
    threads = [threading.Thread(target=rolling.mark, args=(index,)) for index in indexes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert progress.filled_bytes == 0
    rolling.mark(0)
    assert progress.filled_bytes == len(data)
    assert rolling.digest(deadline=Deadline(1, what="hashing")).hex() == checksum(data)
