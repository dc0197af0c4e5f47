"""The rank processes of a bench, seen from their parent: asked together, stopped without fail."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any, Self

from rmux.errors import BackendError, DeadlineError
from rmux.sync.deadline import Deadline
from rmux.sync.plan import Rank

_MODULE = "rmux.sync.bench_rank"
_EXIT_WAIT_S = 5.0
_STDERR_TAIL_BYTES = 2000


class RankProcesses:
    """One process per rank; leaving the context ends all of them, whatever happened."""

    def __init__(self, ranks: Iterable[Rank]) -> None:
        self._answers: queue.Queue[tuple[Rank, dict[str, Any] | None]] = queue.Queue()
        self._processes: dict[Rank, subprocess.Popen[str]] = {}
        self._readers: list[threading.Thread] = []
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed by stop
        self._ranks = tuple(ranks)

    def __enter__(self) -> Self:
        try:
            for rank in self._ranks:
                self._start(rank)
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def pids(self) -> Mapping[Rank, int]:
        return {rank: process.pid for rank, process in self._processes.items()}

    def ask(
        self, commands: Mapping[Rank, Mapping[str, Any]], *, deadline_s: float
    ) -> dict[Rank, dict[str, Any]]:
        """Sends each rank its command, in this order, and waits for all answers.

        BackendError as soon as one fails or dies; DeadlineError naming those that are late.
        """
        for rank, command in commands.items():
            self._send(rank, command)
        deadline = Deadline(deadline_s, what="the ranks' answer")
        answers: dict[Rank, dict[str, Any]] = {}
        while len(answers) < len(commands):
            try:
                rank, answer = self._answers.get(timeout=deadline.left_s())
            except queue.Empty:
                late = ", ".join(str(rank) for rank in commands if rank not in answers)
                raise DeadlineError(f"no answer from {late} in {deadline_s:g} s") from None
            if answer is None:
                raise self._died(rank)
            if "error" in answer:
                raise BackendError(
                    f"rank {rank}: {answer['error']}", code=answer.get("code", "sync.failed")
                )
            answers[rank] = answer
        return answers

    def stop(self) -> None:
        for process in self._processes.values():
            process.kill()
        for process in self._processes.values():
            process.wait(_EXIT_WAIT_S)
        for reader in self._readers:
            reader.join()
        for process in self._processes.values():
            for stream in (process.stdin, process.stdout):
                try:
                    if stream is not None:
                        stream.close()
                except BrokenPipeError:
                    pass  # the rest of a command to a rank that is gone
        self._errors.close()

    def _start(self, rank: Rank) -> None:
        process = subprocess.Popen(
            [sys.executable, "-m", _MODULE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            start_new_session=True,  # Ctrl-C reaches the parent alone, which then stops them
        )
        self._processes[rank] = process
        reader = threading.Thread(target=self._read, args=(rank, process), daemon=True)
        self._readers.append(reader)
        reader.start()

    def _read(self, rank: Rank, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self._answers.put((rank, json.loads(line)))
        self._answers.put((rank, None))

    def _send(self, rank: Rank, command: Mapping[str, Any]) -> None:
        stdin = self._processes[rank].stdin
        assert stdin is not None
        try:
            stdin.write(json.dumps(command) + "\n")
            stdin.flush()
        except BrokenPipeError:
            raise self._died(rank) from None

    def _died(self, rank: Rank) -> BackendError:
        code = self._processes[rank].wait(_EXIT_WAIT_S)
        file = self._errors.fileno()
        begin = max(0, os.fstat(file).st_size - _STDERR_TAIL_BYTES)
        # not seek and read: the ranks write at the same offset
        tail = os.pread(file, _STDERR_TAIL_BYTES, begin).decode(errors="replace").strip()
        return BackendError(
            f"rank {rank} (pid {self._processes[rank].pid}) ended with status {code}",
            code="sync.rank-died",
            details={"status": code, "stderr": tail, "why": tail.splitlines()[-1:]},
        )
