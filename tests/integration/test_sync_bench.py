"""`rmux sync bench` and `plan` end to end: real processes, real sockets, real exit codes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from rmux.cli.documents_sync import bench_document
from rmux.cli.exit_codes import code_of
from rmux.cli.main import main
from rmux.cli.sync import check
from rmux.errors import BackendError, CheckError, DeadlineError
from rmux.run import processes
from rmux.sync.bench import BenchConfig, TopologyResult, Verification, mismatched, run_bench
from rmux.sync.bench_rank import seeded
from rmux.sync.plan import Rank, Side, Topology
from rmux.sync.rank_processes import RankProcesses
from rmux.sync.transport.checksum import checksum

KIB = 2**10


def bench(*flags: str) -> list[str]:
    return ["sync", "bench", "--size", "256KiB", "--runs", "2", "--warmup", "0", *flags]


def document(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_a_bench_times_both_topologies_and_verifies_every_target(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    copy = tmp_path / "bench.json"
    flags = ("--ranks", "2:3", "--verify", "--json", "--export-json", str(copy))
    assert main(bench(*flags)) == 0
    found = document(capsys)
    assert json.loads(copy.read_text()) == found
    assert found["schema"] == "rmux.sync_bench/v1"
    flat, hier = found["results"]
    assert (flat["topology"], hier["topology"]) == ("flat", "hier")
    assert flat["cross_link_bytes"] == 3 * 256 * KIB
    assert hier["cross_link_bytes"] == 256 * KIB
    assert hier["bytes_on_wire"] == 3 * 256 * KIB
    for result in (flat, hier):
        assert result["verify"] == {"ok": True, "algo": "xxh3_128", "checked": 6, "mismatched": 0}
        assert 0 < result["min_s"] <= result["p50_s"] <= result["p95_s"] <= result["max_s"]
        assert len(result["times_s"]) == 2
        assert result["goodput_bytes_per_s"] == pytest.approx(256 * KIB / result["p50_s"])
    assert found["speedup"] == pytest.approx(flat["p50_s"] / hier["p50_s"])
    assert found["host"]["cores"] >= 1


def test_the_table_shows_bytes_on_the_link_and_what_was_verified(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(bench("--topology", "hier", "--verify", "--streams", "2")) == 0
    captured = capsys.readouterr()
    head, titles, row = captured.out.splitlines()
    assert "2 -> 2 processes over loopback" in head
    assert titles.split()[0] == "TOPOLOGY"
    assert "256 KiB" in row
    assert row.endswith("4/4 ok")


def test_an_assertion_that_does_not_hold_exits_7_after_the_answer(
    capsys: pytest.CaptureFixture[str],
) -> None:
    flags = ("--json", "--assert", "hier.p50_s<60", "--assert", "flat.max_s<1e-9")
    assert main(bench(*flags)) == 7
    captured = capsys.readouterr()
    asserts = json.loads(captured.out)["asserts"]
    assert asserts == [
        {"expr": "hier.p50_s<60", "ok": True},
        {"expr": "flat.max_s<1e-9", "ok": False},
    ]
    assert json.loads(captured.err.splitlines()[-1])["code"] == "sync.assert"


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (("--assert", "p95_s=3"), "is not an assertion"),
        (("--assert", "ring.p95_s<3"), "is not a topology"),
        (("--topology", "hier", "--assert", "speedup>1"), "needs flat"),
        (("--ranks", "2x2"), "not a pair of rank counts"),
        (("--ranks", "0:2"), "at least 1 of source ranks"),
        (("--topology", "ring"), "--topology 'ring'"),
        (("--size", "64"), "'64' is not a size"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_anything_starts(
    capsys: pytest.CaptureFixture[str], flags: tuple[str, ...], problem: str
) -> None:
    assert main(bench(*flags)) == 2
    assert problem in capsys.readouterr().err


def test_more_memory_than_there_is_exits_8(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sync", "bench", "--size", "900TiB"]) == 8
    assert "are free" in capsys.readouterr().err


def test_a_plan_is_explained_without_moving_a_byte(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--ranks", "4:8", "--size", "1GB", "--link-rate", "8Gbps", "--json"]
    assert main(["sync", "plan", *flags]) == 0
    hier = document(capsys)
    assert main(["sync", "plan", *flags, "--topology", "flat"]) == 0
    flat = document(capsys)
    assert hier["schema"] == "rmux.sync_plan/v1"
    assert hier["prediction"]["total_s"] == pytest.approx(1.0)
    assert flat["prediction"]["total_s"] == pytest.approx(8.0)
    assert hier["cross_link_bytes"] == 10**9
    assert {step["sender"] for step in hier["steps"] if step["crosses_link"]} == {
        "s0",
        "s1",
        "s2",
        "s3",
    }


def opened(ranks: RankProcesses, rank: Rank, size_bytes: int = KIB) -> dict[str, Any]:
    command = {
        "do": "open",
        "side": rank.side,
        "index": rank.index,
        "size_bytes": size_bytes,
        "seed": 7,
        "address": "127.0.0.1",
    }
    return ranks.ask({rank: command}, deadline_s=20)[rank]


SOURCE, TARGET = Rank(Side.SOURCE, 0), Rank(Side.TARGET, 0)


def test_targets_are_cleared_between_runs_so_stale_bytes_cannot_verify() -> None:
    with RankProcesses([TARGET]) as ranks:
        opened(ranks, TARGET)
        ranks.ask({TARGET: {"do": "clear"}}, deadline_s=20)
        answer = ranks.ask({TARGET: {"do": "checksum"}}, deadline_s=20)[TARGET]
    assert answer["checksum"] == checksum(bytes(KIB))
    assert answer["checksum"] != checksum(seeded(KIB, seed=7))


def test_a_target_that_holds_other_bytes_is_counted_and_exits_7() -> None:
    config = BenchConfig(num_sources=1, num_targets=1, size_bytes=KIB)
    with RankProcesses([SOURCE, TARGET]) as ranks:
        opened(ranks, SOURCE)
        opened(ranks, TARGET)
        assert mismatched(config, ranks) == 1
    damaged = TopologyResult(
        topology=Topology.HIER,
        size_bytes=KIB,
        times_s=(1.0,),
        link_bytes=KIB,
        sent_bytes=KIB,
        verification=Verification(checked=2, mismatched=1),
    )
    with pytest.raises(CheckError, match="other bytes than the sources under hier") as caught:
        check(bench_document(config, (damaged,), []))
    assert code_of(caught.value) == 7


def test_a_target_is_not_measured_twice_without_being_cleared() -> None:
    with RankProcesses([TARGET, SOURCE]) as ranks:
        run = {
            "do": "run",
            "topology": "hier",
            "sync_id": "r1",
            "num_sources": 1,
            "num_targets": 1,
            "endpoints": [opened(ranks, TARGET)["endpoint"]],
            "streams": 1,
            "chunk_bytes": KIB,
            "deadline_s": 20,
        }
        opened(ranks, SOURCE)
        ranks.ask({TARGET: run, SOURCE: run}, deadline_s=20)
        with pytest.raises(BackendError, match="not cleared"):
            ranks.ask({TARGET: run}, deadline_s=20)


def test_a_rank_that_dies_is_named_and_ends_the_bench_at_once() -> None:
    with RankProcesses([SOURCE, TARGET]) as ranks:
        opened(ranks, SOURCE)
        pids = ranks.pids
        os.kill(pids[TARGET], signal.SIGKILL)
        with pytest.raises(BackendError, match=r"rank t0 \(pid \d+\) ended with status -9"):
            ranks.ask({TARGET: {"do": "checksum"}}, deadline_s=20)
    assert not any(psutil.pid_exists(pid) for pid in pids.values())


def test_a_rank_that_hangs_is_named_at_the_deadline_and_stopped() -> None:
    with RankProcesses([TARGET]) as ranks:
        opened(ranks, TARGET)
        pid = ranks.pids[TARGET]
        os.kill(pid, signal.SIGSTOP)
        with pytest.raises(DeadlineError, match=r"no answer from t0 in 0\.2 s"):
            ranks.ask({TARGET: {"do": "checksum"}}, deadline_s=0.2)
    assert not psutil.pid_exists(pid)


def test_a_rank_killed_in_mid_sync_fails_the_run_and_leaves_no_process() -> None:
    """The source dies while all others wait for its bytes."""
    with RankProcesses([TARGET, SOURCE]) as ranks:
        endpoint = opened(ranks, TARGET, 8 * KIB)["endpoint"]
        pids = ranks.pids
        timer = threading.Timer(0.2, os.kill, (pids[SOURCE], signal.SIGKILL))
        timer.start()
        run = {
            "do": "run",
            "topology": Topology.HIER,
            "sync_id": "r1",
            "num_sources": 1,
            "num_targets": 1,
            "endpoints": [endpoint],
            "streams": 1,
            "chunk_bytes": KIB,
            "deadline_s": 30,
        }
        begun_s = time.monotonic()
        with pytest.raises(BackendError, match="rank s0"):
            ranks.ask({TARGET: run}, deadline_s=20)
        assert time.monotonic() - begun_s < 5
        timer.join()
    assert not any(psutil.pid_exists(pid) for pid in pids.values())


def test_a_bench_with_a_deadline_it_cannot_meet_says_so() -> None:
    config = BenchConfig(
        num_sources=1, num_targets=2, size_bytes=64 * 2**20, runs=1, warmup=0, deadline_s=0.001
    )
    with pytest.raises((BackendError, DeadlineError)) as caught:
        run_bench(config)
    assert "rank" in caught.value.message


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_every_rank(number: signal.Signals) -> None:
    command = "import sys; from rmux.cli.main import main; sys.exit(main(sys.argv[1:]))"
    flags = ["--size", "8MiB", "--runs", "100000", "--ranks", "1:2"]
    with subprocess.Popen(
        [sys.executable, "-c", command, "sync", "bench", *flags],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as parent:
        assert parent.stderr is not None
        for line in parent.stderr:
            if line.startswith("hier 1:"):
                break
        ranks = psutil.Process(parent.pid).children(recursive=True)
        assert len(ranks) == 3
        # Ctrl-C on a terminal reaches a whole process group: only the parent may be in it.
        assert all(os.getpgid(rank.pid) != os.getpgid(parent.pid) for rank in ranks)
        parent.send_signal(number)
        parent.stderr.read()
        assert parent.wait(10) == 128 + number
    assert not any(rank.is_running() for rank in ranks)


def test_a_bench_killed_outright_leaves_no_rank_behind() -> None:
    command = "import sys; from rmux.cli.main import main; sys.exit(main(sys.argv[1:]))"
    with subprocess.Popen(
        [sys.executable, "-c", command, "sync", "bench", "--size", "8MiB", "--runs", "100000"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as parent:
        assert parent.stderr is not None
        for line in parent.stderr:
            if line.startswith("hier 1:"):
                break
        ranks = psutil.Process(parent.pid).children(recursive=True)
        parent.kill()
        gone, alive = psutil.wait_procs(ranks, timeout=10)
    assert (len(gone), alive) == (4, [])


def waiting_target(stdin: Any, stdout: Any) -> None:
    """Bring a rank to where it waits for a sender that never comes."""
    opened = {"do": "open", "side": "target", "index": 0, "size_bytes": KIB, "seed": 7}
    stdin.write(json.dumps({**opened, "address": "127.0.0.1"}) + "\n")
    stdin.flush()
    run = {"do": "run", "topology": "hier", "sync_id": "r1", "num_sources": 1, "num_targets": 1}
    endpoints = [json.loads(stdout.readline())["endpoint"]]
    rest = {"endpoints": endpoints, "streams": 1, "chunk_bytes": KIB, "deadline_s": 60}
    stdin.write(json.dumps({**run, **rest}) + "\n")
    stdin.flush()


RANK = [sys.executable, "-m", "rmux.sync.bench_rank"]


def test_a_rank_in_mid_sync_ends_with_a_parent_that_died_in_the_middle_of_a_command() -> None:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(RANK, text=True, **pipes) as rank:
        try:
            waiting_target(rank.stdin, rank.stdout)
            assert rank.stdin is not None
            rank.stdin.write('{"do": "che')
            rank.stdin.close()
            assert rank.wait(1) == 3
        finally:
            rank.kill()


def test_a_rank_in_mid_sync_ends_with_its_parent_though_its_stdin_stays_open() -> None:
    start = f"import subprocess; p = subprocess.Popen({RANK!r}); print(p.pid, flush=True); p.wait()"
    with subprocess.Popen(
        [sys.executable, "-c", start], text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as parent:
        assert parent.stdout is not None
        rank = processes.identify(int(parent.stdout.readline()))
        assert rank is not None
        try:
            waiting_target(parent.stdin, parent.stdout)
            parent.kill()
            assert processes.wait_ended([rank], timeout_s=1) == []
        finally:
            parent.kill()
            if processes.is_alive(rank):
                os.kill(rank.pid, signal.SIGKILL)
