from __future__ import annotations

import json

import pytest

from rmux.estimate import JobProfile
from rmux.job import Engine, JobSpec, RolloutSpec
from rmux.store.documents import from_document, to_document, to_json


def through_json(value):
    return json.loads(to_json(to_document(value)))


def test_a_profile_survives_json(samples):
    profile = samples.profile()
    assert from_document(JobProfile, through_json(profile)) == profile


def test_a_spec_survives_json_with_its_labels_and_nested_parts():
    spec = JobSpec(
        name="a",
        engine=Engine.EMULATED,
        recipe=None,
        script="/x/y.py",
        rollout=RolloutSpec(devices=2, temperature=0.7),
        labels=(("team", "math"),),
    )
    assert from_document(JobSpec, through_json(spec)) == spec


def test_a_key_of_a_newer_tool_is_ignored_and_a_missing_one_takes_its_default():
    document = {"name": "a", "warp_factor": 9, "rollout": {"devices": 3, "new": 1}}
    assert from_document(JobSpec, document) == JobSpec(name="a", rollout=RolloutSpec(devices=3))


def test_a_document_without_a_required_key_is_an_error():
    with pytest.raises(TypeError, match="name"):
        from_document(JobSpec, {"iterations": 3})


def test_json_has_no_numbers_that_are_not_finite():
    assert to_json({"a": float("inf"), "b": [1.5, float("nan")]}) == '{"a":null,"b":[1.5,null]}'
