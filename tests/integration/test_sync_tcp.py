"""Weights over real sockets: whole and right, or an error that names the peer."""

from __future__ import annotations

import itertools
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from multiprocessing.shared_memory import SharedMemory
from typing import Any

import pytest

from rmux.errors import (
    BackendError,
    CheckError,
    ConflictError,
    DeadlineError,
    RmuxError,
    UnreachableError,
    UserError,
)
from rmux.sync.deadline import Deadline
from rmux.sync.transport.base import Endpoint, Progress
from rmux.sync.transport.checksum import checksum
from rmux.sync.transport.incoming import Hello
from rmux.sync.transport.tcp import Receiver, send
from rmux.sync.transport.wire import END, Wire

KIB = 2**10
MIB = 2**20
WAIT_S = 20.0


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver("127.0.0.1") as opened:
        yield opened


def start(call: Callable[[], Any]) -> Future[Any]:
    """The call in its own thread; its result or error later."""
    future: Future[Any] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except RmuxError as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


def receive(
    receiver: Receiver, target: Any, deadline_s: float = WAIT_S, **more: Any
) -> Future[Any]:
    view = target if isinstance(target, memoryview) else memoryview(target)
    return start(
        lambda: receiver.receive_into(view, transfer_id="w1", deadline_s=deadline_s, **more)
    )


def weights(size_bytes: int, seed: int = 7) -> bytes:
    return random.Random(seed).randbytes(size_bytes)


@pytest.mark.parametrize("streams", [1, 3, 8])
@pytest.mark.parametrize("size_bytes", [1, 4 * KIB, 4 * MIB + 13])
def test_every_byte_arrives_over_any_number_of_flows(
    receiver: Receiver, streams: int, size_bytes: int
) -> None:
    source, target = weights(size_bytes), bytearray(size_bytes)
    arriving = receive(receiver, target)
    sent = send(
        receiver.endpoint(),
        memoryview(source),
        transfer_id="w1",
        streams=streams,
        chunk_bytes=64 * KIB,
        deadline_s=WAIT_S,
    )
    arrived = arriving.result(WAIT_S)
    assert target == source
    assert sent.bytes == arrived.bytes == size_bytes
    assert sent.checksum == arrived.checksum == checksum(source)
    assert sent.seconds > 0


def test_a_sender_that_is_early_waits_for_the_buffer(receiver: Receiver) -> None:
    source, target = weights(KIB), bytearray(KIB)
    sending = start(
        lambda: send(receiver.endpoint(), memoryview(source), transfer_id="w1", deadline_s=WAIT_S)
    )
    time.sleep(0.05)
    receive(receiver, target).result(WAIT_S)
    sending.result(WAIT_S)
    assert target == source


def test_several_senders_fill_disjoint_ranges_of_one_buffer(receiver: Receiver) -> None:
    source, target = weights(3 * MIB), bytearray(3 * MIB)
    arriving = receive(receiver, target)
    edges = [0, 100, MIB, 3 * MIB]
    sending = [
        start(
            lambda begin=begin, end=end: send(
                receiver.endpoint(),
                memoryview(source)[begin:end],
                transfer_id="w1",
                offset=begin,
                streams=2,
                deadline_s=WAIT_S,
            )
        )
        for begin, end in itertools.pairwise(edges)
    ]
    for each in sending:
        each.result(WAIT_S)
    assert arriving.result(WAIT_S).checksum == checksum(source)
    assert target == source


def test_transfers_of_one_receiver_run_side_by_side(receiver: Receiver) -> None:
    sources = {f"t{index}": weights(MIB, seed=index) for index in range(8)}
    targets = {name: bytearray(MIB) for name in sources}
    calls = [
        start(
            lambda name=name: receiver.receive_into(
                memoryview(targets[name]), transfer_id=name, deadline_s=WAIT_S
            )
        )
        for name in sources
    ] + [
        start(
            lambda name=name, data=data: send(
                receiver.endpoint(),
                memoryview(data),
                transfer_id=name,
                streams=2,
                deadline_s=WAIT_S,
            )
        )
        for name, data in sources.items()
    ]
    for call in calls:
        call.result(WAIT_S)
    assert targets == sources


def test_overlapping_ranges_are_refused(receiver: Receiver) -> None:
    data = weights(KIB)
    arriving = receive(receiver, bytearray(2 * KIB))
    send(receiver.endpoint(), memoryview(data), transfer_id="w1", deadline_s=WAIT_S)
    with pytest.raises(BackendError, match="overlap"):
        send(receiver.endpoint(), memoryview(data), transfer_id="w1", offset=10, deadline_s=WAIT_S)
    send(receiver.endpoint(), memoryview(data), transfer_id="w1", offset=KIB, deadline_s=WAIT_S)
    assert arriving.result(WAIT_S).bytes == 2 * KIB


def test_a_range_outside_the_buffer_is_refused(receiver: Receiver) -> None:
    target = bytearray(KIB)
    arriving = receive(receiver, target, deadline_s=0.3)
    with pytest.raises(BackendError, match="do not fit a buffer of 1024"):
        send(
            receiver.endpoint(),
            memoryview(weights(KIB)),
            transfer_id="w1",
            offset=1,
            deadline_s=WAIT_S,
        )
    with pytest.raises(DeadlineError):
        arriving.result(WAIT_S)
    assert target == bytes(KIB)


def test_a_stranger_without_the_token_writes_nothing(receiver: Receiver) -> None:
    target = bytearray(KIB)
    arriving = receive(receiver, target)
    real = receiver.endpoint()
    forged = Endpoint(host=real.host, port=real.port, token="0" * 32)
    with pytest.raises(BackendError, match="token"):
        send(forged, memoryview(weights(KIB)), transfer_id="w1", deadline_s=WAIT_S)
    assert target == bytes(KIB)
    source = weights(KIB, seed=2)
    send(real, memoryview(source), transfer_id="w1", deadline_s=WAIT_S)
    arriving.result(WAIT_S)
    assert target == source


def test_noise_on_the_port_disturbs_no_transfer(receiver: Receiver) -> None:
    source, target = weights(KIB), bytearray(KIB)
    arriving = receive(receiver, target)
    endpoint = receiver.endpoint()
    with socket.create_connection((endpoint.host, endpoint.port)) as noise:
        noise.sendall(b"GET / HTTP/1.1\r\nHost: somebody\r\n\r\n" * 40)
        send(endpoint, memoryview(source), transfer_id="w1", deadline_s=WAIT_S)
    arriving.result(WAIT_S)
    assert target == source


def test_weights_do_not_go_to_a_listener_that_lacks_the_token() -> None:
    real_token = "1" * 32
    with Receiver() as impostor:
        elsewhere = impostor.endpoint()
        wanted = Endpoint(host=elsewhere.host, port=elsewhere.port, token=real_token)
        target = bytearray(KIB)
        arriving = receive(impostor, target, deadline_s=0.3)
        with pytest.raises(BackendError, match="token"):
            send(wanted, memoryview(weights(KIB)), transfer_id="w1", deadline_s=WAIT_S)
        with pytest.raises(DeadlineError):
            arriving.result(WAIT_S)
        assert target == bytes(KIB)


def test_weights_do_not_go_to_a_listener_that_only_pretends_to_have_the_token() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        endpoint = Endpoint(host="127.0.0.1", port=server.getsockname()[1], token="1" * 32)

        def pretend() -> bytes:
            sock, _ = server.accept()
            with sock:
                sock.sendall(bytes(16))
                sock.recv(4096)
                answer = b'{"proof": "00"}'
                sock.sendall(len(answer).to_bytes(2, "big") + answer)
                return b"".join(iter(lambda: sock.recv(4096), b""))

        caught = start(pretend)
        with pytest.raises(BackendError, match="does not know the token"):
            send(endpoint, memoryview(weights(KIB)), transfer_id="w1", deadline_s=WAIT_S)
        assert caught.result(WAIT_S) == b""


def hello(size_bytes: int, **changes: Any) -> Hello:
    facts: dict[str, Any] = {
        "transfer_id": "w1",
        "send_id": "s1",
        "offset": 0,
        "num_bytes": size_bytes,
        "chunk_bytes": KIB,
        "leading": True,
        "wait_s": WAIT_S,
    }
    return Hello(**{**facts, **changes})


def greeted(receiver: Receiver, said: Hello) -> Wire:
    endpoint = receiver.endpoint()
    wire = Wire.connect(
        endpoint.host, endpoint.port, deadline=Deadline(WAIT_S, what="the test's flow")
    )
    wire.greet(said, token=endpoint.token)
    return wire


def test_bytes_damaged_on_the_way_are_refused_at_both_ends(receiver: Receiver) -> None:
    source, target = weights(2 * KIB), bytearray(2 * KIB)
    damaged = bytearray(source)
    damaged[1500] ^= 1
    arriving = receive(receiver, target)
    wire = greeted(receiver, hello(2 * KIB))
    for index in (0, 1):
        wire.send_index(index, more=True)
        wire.send(bytes(damaged[index * KIB : (index + 1) * KIB]))
    wire.send_index(END, more=True)
    wire.send(bytes.fromhex(checksum(source)))
    with pytest.raises(CheckError, match="arrived damaged"):
        wire.receive_answer()
    with pytest.raises(CheckError, match=checksum(source)):
        arriving.result(WAIT_S)
    wire.close()


def test_a_chunk_that_comes_twice_ends_the_transfer(receiver: Receiver) -> None:
    arriving = receive(receiver, bytearray(2 * KIB))
    wire = greeted(receiver, hello(2 * KIB))
    for _ in range(2):
        wire.send_index(0, more=True)
        wire.send(bytes(KIB))
    with pytest.raises(BackendError, match="came twice"):
        arriving.result(WAIT_S)
    wire.close()


def test_a_sender_that_stops_before_the_end_never_counts_as_success(receiver: Receiver) -> None:
    arriving = receive(receiver, bytearray(2 * KIB))
    wire = greeted(receiver, hello(2 * KIB))
    wire.send_index(0, more=True)
    wire.send(bytes(KIB))
    wire.close()
    with pytest.raises(UnreachableError, match=r"lost 127\.0\.0\.1:\d+"):
        arriving.result(WAIT_S)


def test_when_one_sender_dies_those_that_hang_are_cut_off_at_once(receiver: Receiver) -> None:
    arriving = receive(receiver, bytearray(2 * KIB))
    hanging = greeted(receiver, hello(KIB))
    dying = greeted(receiver, hello(KIB, send_id="s2", offset=KIB))
    begun_s = time.monotonic()
    dying.close()
    with pytest.raises(UnreachableError):
        arriving.result(WAIT_S)
    assert time.monotonic() - begun_s < 2
    with pytest.raises(BackendError, match="refused: lost"):
        hanging.receive_answer()
    hanging.close()


def test_a_sender_that_claims_the_end_too_early_runs_into_the_deadline(
    receiver: Receiver,
) -> None:
    arriving = receive(receiver, bytearray(2 * KIB), deadline_s=0.3)
    wire = greeted(receiver, hello(2 * KIB))
    wire.send_index(0, more=True)
    wire.send(bytes(KIB))
    wire.send_index(END, more=True)
    wire.send(bytes.fromhex(checksum(bytes(2 * KIB))))
    with pytest.raises(DeadlineError):
        arriving.result(WAIT_S)
    wire.close()


SENDER = """
import sys
from rmux.sync.transport.base import Endpoint, Progress
from rmux.sync.transport.tcp import send
progress = Progress()
progress.advance(512 * 1024)  # the rest never becomes ready: the sender hangs in mid-transfer
print("going", flush=True)
send(Endpoint.parse(sys.argv[1]), memoryview(bytes(2**20)), transfer_id="w1", streams=2,
     chunk_bytes=65536, deadline_s=60, progress=progress)
"""


def test_a_sender_killed_in_mid_transfer_is_named_at_once(receiver: Receiver) -> None:
    arriving = receive(receiver, bytearray(MIB))
    with subprocess.Popen(
        [sys.executable, "-c", SENDER, receiver.endpoint().text], stdout=subprocess.PIPE
    ) as sender:
        assert sender.stdout is not None
        assert sender.stdout.readline() == b"going\n"
        time.sleep(0.2)
        killed_s = time.monotonic()
        sender.send_signal(signal.SIGKILL)
        with pytest.raises(UnreachableError, match=r"127\.0\.0\.1:\d+") as caught:
            arriving.result(WAIT_S)
    assert caught.value.code == "sync.peer-lost"
    assert time.monotonic() - killed_s < 2


RECEIVER = """
import sys
from rmux.sync.transport.tcp import Receiver
receiver = Receiver()
print(receiver.endpoint().text, flush=True)
receiver.receive_into(memoryview(bytearray(2**20)), transfer_id="w1", deadline_s=60)
"""


def test_a_receiver_killed_in_mid_transfer_is_named_at_once() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", RECEIVER], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        endpoint = Endpoint.parse(process.stdout.readline().strip())
        progress = Progress()
        progress.advance(256 * KIB)
        sending = start(
            lambda: send(
                endpoint,
                memoryview(bytes(MIB)),
                transfer_id="w1",
                streams=2,
                chunk_bytes=64 * KIB,
                deadline_s=WAIT_S,
                progress=progress,
            )
        )
        time.sleep(0.2)
        process.kill()
        process.wait()
        progress.advance(MIB)
        with pytest.raises(UnreachableError, match=endpoint.address):
            sending.result(WAIT_S)


def test_nobody_listening_is_an_error_that_names_the_address() -> None:
    with Receiver() as closed:
        endpoint = closed.endpoint()
    with pytest.raises(UnreachableError, match=endpoint.address):
        send(endpoint, memoryview(b"x"), transfer_id="w1", deadline_s=WAIT_S)


def test_a_hung_receiver_costs_the_sender_its_deadline_and_no_more() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", RECEIVER], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        endpoint = Endpoint.parse(process.stdout.readline().strip())
        process.send_signal(signal.SIGSTOP)
        begun_s = time.monotonic()
        with pytest.raises(DeadlineError, match=endpoint.address):
            send(endpoint, memoryview(bytes(MIB)), transfer_id="w1", deadline_s=0.3)
        assert time.monotonic() - begun_s < 2
        process.kill()


def test_a_receiver_nobody_sends_to_stops_at_its_deadline(receiver: Receiver) -> None:
    with pytest.raises(DeadlineError, match="receiving transfer w1"):
        receive(receiver, bytearray(KIB), deadline_s=0.1).result(WAIT_S)


def test_a_buffer_belongs_to_its_owner_again_after_a_failure(receiver: Receiver) -> None:
    segment = SharedMemory(create=True, size=MIB)
    try:
        arriving = receive(receiver, segment.buf, deadline_s=0.2)
        wire = greeted(receiver, hello(MIB))
        wire.send_index(0, more=True)
        wire.send(b"\1" * 10)
        with pytest.raises(DeadlineError):
            arriving.result(WAIT_S)
        before = bytes(segment.buf[:KIB])
        try:
            wire.send(b"\2" * (KIB - 10))
        except UnreachableError:
            pass  # the receiver may have hung up already
        time.sleep(0.05)
        assert bytes(segment.buf[:KIB]) == before
        wire.close()
    finally:
        segment.close()  # raises BufferError if anything still holds the buffer
        segment.unlink()


def test_closing_the_receiver_wakes_whoever_waits(receiver: Receiver) -> None:
    arriving = receive(receiver, bytearray(KIB))
    time.sleep(0.05)
    receiver.close()
    with pytest.raises(UnreachableError, match="closed"):
        arriving.result(WAIT_S)


def test_one_transfer_id_is_received_once_at_a_time(receiver: Receiver) -> None:
    first = receive(receiver, bytearray(KIB), deadline_s=0.4)
    time.sleep(0.05)
    with pytest.raises(ConflictError, match="w1"):
        receive(receiver, bytearray(KIB)).result(WAIT_S)
    with pytest.raises(DeadlineError):
        first.result(WAIT_S)


def test_a_read_only_or_empty_buffer_is_refused_before_anything_moves(receiver: Receiver) -> None:
    with pytest.raises(UserError, match="read-only"):
        receiver.receive_into(memoryview(b"abc"), transfer_id="w1", deadline_s=1)
    with pytest.raises(UserError, match="at least one byte"):
        send(receiver.endpoint(), memoryview(b""), transfer_id="w1", deadline_s=1)


def test_progress_lets_a_buffer_be_forwarded_while_it_arrives(receiver: Receiver) -> None:
    source, middle, target = weights(MIB), bytearray(MIB), bytearray(MIB)
    upstream, filled = Progress(), Progress()
    upstream.advance(MIB // 2)
    with Receiver() as last:
        arriving = receive(receiver, middle, progress=filled)
        final = receive(last, target)
        forwarding = start(
            lambda: send(
                last.endpoint(),
                memoryview(middle),
                transfer_id="w1",
                chunk_bytes=64 * KIB,
                deadline_s=WAIT_S,
                progress=filled,
            )
        )
        sending = start(
            lambda: send(
                receiver.endpoint(),
                memoryview(source),
                transfer_id="w1",
                chunk_bytes=64 * KIB,
                deadline_s=WAIT_S,
                progress=upstream,
            )
        )
        ends_s = time.monotonic() + WAIT_S
        while target[: MIB // 2] != source[: MIB // 2]:
            assert time.monotonic() < ends_s, "the first half is not forwarded before the second"
            time.sleep(0.005)
        upstream.advance(MIB)
        for call in (sending, arriving, forwarding, final):
            call.result(WAIT_S)
    assert target == source


def test_the_token_shows_in_no_repr(receiver: Receiver) -> None:
    endpoint = receiver.endpoint()
    assert endpoint.token not in repr(endpoint)
    assert Endpoint.parse(endpoint.text) == endpoint


def test_no_thread_or_descriptor_is_left_behind() -> None:
    threads, descriptors = threading.active_count(), len(os.listdir("/proc/self/fd"))
    with Receiver() as opened:
        arriving = receive(opened, bytearray(MIB))
        send(
            opened.endpoint(),
            memoryview(bytes(MIB)),
            transfer_id="w1",
            streams=4,
            chunk_bytes=KIB,
            deadline_s=WAIT_S,
        )
        arriving.result(WAIT_S)
    assert threading.active_count() == threads
    assert len(os.listdir("/proc/self/fd")) == descriptors
