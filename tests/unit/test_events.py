import json
from datetime import UTC, datetime

import pytest

from rmux.events import EventType, PhaseEvent, from_document, to_document
from rmux.job import Phase

EVENT = PhaseEvent(
    type=EventType.PHASE_END,
    at=datetime(2026, 11, 29, 15, 41, 7, 120000, UTC),
    at_s=12.5,
    source="j-1/1",
    source_n=3,
    iteration=0,
    phase=Phase.TRAIN,
    data={"run_s": 1.5},
)


def test_an_event_survives_its_document():
    assert from_document(json.loads(json.dumps(to_document(EVENT)))) == EVENT


def test_unknown_keys_of_a_newer_sender_are_ignored():
    assert from_document({**to_document(EVENT), "colour": "red"}) == EVENT


@pytest.mark.parametrize("broken", [{"type": "no.such"}, {"at": "yesterday"}, {"phase": "nap"}])
def test_what_is_no_event_is_refused(broken):
    with pytest.raises(ValueError, match=r"no.such|yesterday|nap"):
        from_document({**to_document(EVENT), **broken})
