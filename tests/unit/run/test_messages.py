from __future__ import annotations

import json

import pytest

from rmux.run.messages import (
    DeviceReport,
    DeviceUse,
    DriverOrder,
    DriverReport,
    DriverStatus,
    Grant,
    Grants,
    NodeReport,
    Permits,
    Want,
    decode,
    encode,
)

GRANT = Grant(
    device="n/0",
    epoch=2,
    seq=7,
    job="j-1",
    attempt=1,
    iteration=3,
    phase="train",
    bound_s=60.0,
)
STATUS = DriverStatus(
    job="j-1",
    attempt=1,
    state="running",
    iteration=3,
    wants=(
        Want(phase="train", iteration=3, devices=("n/0", "n/1")),
        Want(phase="rollout", iteration=4, devices=("n/2",)),
    ),
)
MESSAGES = [
    Grants(
        group="g-1",
        epoch=2,
        grants=(GRANT,),
        drivers=(DriverOrder(job="j-1", attempt=1, desired="run", home="n"),),
        acks=(("j-1/1", 12),),
    ),
    NodeReport(
        node="n",
        runner="boot:1:2",
        epoch=2,
        devices=(DeviceReport(device="n/0", epoch=2, seq=7, state="released", proof_s=0.005),),
        drivers=(STATUS,),
        events=({"type": "grant", "data": {"seq": 1}},),
        resident_bytes=5,
    ),
    Permits(grants=(GRANT,), desired="pause", acks=(("j-1/1", 3),)),
    DriverReport(
        status=STATUS,
        pid=12,
        uses=(DeviceUse(device="n/0", epoch=2, seq=7, state="parked", pids=(1, 2)),),
    ),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_every_message_comes_back_as_it_was_sent(message):
    assert decode(encode(message)) == message


def test_a_driver_that_wants_nothing_says_so():
    report = DriverReport(status=DriverStatus(job="j", attempt=1, state="starting"), pid=1)
    assert decode(encode(report)) == report


def test_a_want_of_an_earlier_tool_is_one_of_the_wants():
    report = DriverReport(status=STATUS, pid=1)
    body = json.loads(encode(report))
    body["status"]["want"] = body["status"].pop("wants")[0]
    assert decode(json.dumps(body)).status.wants == STATUS.wants[:1]


def test_a_field_of_a_later_tool_is_ignored():
    body = json.loads(encode(MESSAGES[2]))
    body["color"] = "green"
    body["grants"][0]["smell"] = 1
    assert decode(json.dumps(body)) == MESSAGES[2]


def _changed(**changes):
    return json.dumps({**json.loads(encode(MESSAGES[1])), **changes})


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        encode(MESSAGES[0])[:-5],
        _changed(kind="gossip"),
        _changed(v=2),
        _changed(epoch="2"),
        _changed(epoch=True),
        _changed(node=3),
        _changed(devices=[{"device": "n/0"}]),
        _changed(devices=7),
    ],
)
def test_what_cannot_be_read_is_none_and_never_an_exception(text):
    assert decode(text) is None


def test_grants_are_ordered_by_epoch_before_number():
    later = Grant(**{**{f: getattr(GRANT, f) for f in GRANT.__slots__}, "epoch": 3, "seq": 1})
    assert later.order > GRANT.order
