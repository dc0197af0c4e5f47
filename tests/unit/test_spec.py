import dataclasses
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmux import spec
from rmux.errors import SpecError
from rmux.job import CheckpointSpec, Engine, JobSpec, RolloutSpec, TrainSpec

EMULATED = 'name = "a"\nengine = "emulated"\n'


@pytest.fixture
def write(tmp_path):
    def make(text, name="job.toml"):
        path = tmp_path / name
        path.write_text(text)
        return path

    return make


@pytest.fixture
def real(tmp_path):
    """The text of a job on real engines whose files are all there."""
    (tmp_path / "model").mkdir()
    (tmp_path / "words.py").write_text("")
    return """\
name = "words"
[model]
path = "model"
[task]
prompts = "words.py:prompts"
[reward]
function = "words.py:score"
"""


def refused(path):
    with pytest.raises(SpecError) as caught:
        spec.load_spec(path)
    return caught.value


def test_a_name_and_the_engine_are_enough_for_an_emulated_job(write):
    job = spec.load_spec(write(EMULATED))
    assert job == JobSpec(name="a", engine=Engine.EMULATED)


def test_paths_are_taken_from_the_folder_of_the_spec(write, real, tmp_path, monkeypatch):
    monkeypatch.chdir("/")
    job = spec.load_spec(write(real))
    assert job.model_path == str(tmp_path / "model")
    assert job.task_module == f"{tmp_path}/words.py:prompts"
    assert job.reward.function == f"{tmp_path}/words.py:score"
    assert job.recipe == "grpo"


def test_quantities_are_read_with_their_units(write):
    job = spec.load_spec(
        write(
            EMULATED
            + 'restart_hold = "2m"\nlabels = {team = "math", run = "7"}\n'
            + '[rollout]\nkv_cache = "2GiB"\n'
            + '[reward]\ntimeout = "5s"\ntime_per_sample = "20ms"\n'
            + '[emulated]\nrollout = "2s"\ntrain = "500ms"\nresident = "64MiB"\njitter = 0.1\n'
        )
    )
    assert job.restart_hold_s == 120
    assert job.labels == (("run", "7"), ("team", "math"))
    assert job.rollout.kv_cache_bytes == 2**31
    assert (job.reward.timeout_s, job.reward.seconds_per_sample) == (5, 0.02)
    assert (job.emulated.rollout_s, job.emulated.train_s) == (2, 0.5)
    assert (job.emulated.resident_bytes, job.emulated.jitter) == (2**26, 0.1)


def test_an_unknown_key_is_told_with_file_line_and_nearest_key(write):
    error = refused(write(EMULATED + "[rollout]\ndevices = 1\nmax_tokenz = 4\n"))
    assert error.code == "spec.unknown-key"
    assert error.message.endswith(
        "job.toml:5: rollout.max_tokenz is not a key (did you mean max_tokens?)"
    )


def test_a_key_outside_its_table_is_told_where_it_belongs(write):
    error = refused(write("max_tokens = 4\n" + EMULATED))
    assert "max_tokens is not a key (did you mean rollout.max_tokens?)" in error.message


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("slo = 0.9", "slo is 0.9; the smallest slowdown a job can accept is 1"),
        ("slo = inf", "slo"),
        ("max_staleness = 2", "fully asynchronous jobs leave no bubble to fill"),
        ("iterations = 0", "iterations is 0; it must be at least 1"),
        ("iterations = true", "iterations must be a whole number"),
        ('iterations = "3"', "iterations must be a whole number"),
        ("seed = -1", "seed is -1; it must be at least 0"),
        ("restart_hold = 120", "restart_hold is 120; write a number and a unit in quotes"),
        ('restart_hold = "2 moons"', "'2 moons' is not a duration"),
        ('recipe = "sft"', "recipe is 'sft'; write 'grpo', 'dapo' or 'ppo'"),
        ('recipe = "grpo"\nscript = "a.py"', "recipe and script are both set"),
        ("[rollout]\ntop_p = 0", "rollout.top_p is 0; it must be more than 0"),
        ("[rollout]\ntemperature = nan", "rollout.temperature must be finite"),
        ('[rollout]\ndtype = "int8"', "rollout.dtype is 'int8'; write 'float32'"),
        ('[reward]\nfunction = "score"', "reward.function is 'score'; write 'file.py:name'"),
        ("rollout = 1", "rollout must be a table"),
        ("[labels]\nteam = 1", "labels.team must be text in quotes"),
    ],
)
def test_a_value_that_cannot_be_used_is_told_in_plain_words(write, line, message):
    assert message in refused(write(EMULATED + line + "\n")).message


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("iterations = 1000000001", "iterations is 1000000001; it must be at most 1000000000"),
        (f"iterations = {10**400}", "it must be at most 1000000000"),
        (f"seed = {2**60}", "it must be at most 9007199254740992"),
        (f"slo = {10**400}", "slo"),
        (f"[rollout]\ntemperature = {10**400}", "rollout.temperature"),
        ("iterations = " + "9" * 5000, "too many digits"),
        ('[rollout]\nkv_cache = "4194305TiB"', "'4194305TiB' is too large a size; at most 4194304"),
        ('[rollout]\nkv_cache = "' + "9" * 400 + 'B"', "is too large a size; at most 4194304TiB"),
        ('restart_hold = "3651d"', "'3651d' is too large a duration; at most 3650d"),
        ('[emulated]\nrollout = "' + "9" * 400 + 's"', "is too large a duration; at most 3650d"),
    ],
)
def test_a_number_beyond_all_use_is_told_with_the_limit(write, line, message):
    found = refused(write(EMULATED + line + "\n")).message
    assert message in found
    assert len(found) < 1000


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("top_p = 0.9", "rollout.top_p is 0.9; log-probabilities over a truncated vocabulary"),
        ("min_tokens = 4", "rollout.min_tokens is 4; where a response may not end yet"),
        ("presence_penalty = 0.5", "rollout.presence_penalty is 0.5; it counts the response"),
        ("frequency_penalty = -1.0", "rollout.frequency_penalty is -1; it counts the response"),
        ("repetition_penalty = 1.2", "rollout.repetition_penalty is 1.2; it samples from another"),
        ('stop = ["END"]', "rollout.stop is ['END']; a text may lie across the seam"),
    ],
)
def test_sampling_that_is_not_continued_or_trained_faithfully_is_refused(write, line, message):
    assert message in refused(write(EMULATED + "[rollout]\n" + line + "\n")).message


def test_the_neutral_values_of_such_sampling_change_nothing(write):
    neutral = """[rollout]
top_p = 1.0
min_tokens = 0
presence_penalty = 0.0
frequency_penalty = 0.0
repetition_penalty = 1.0
stop = []
"""
    assert spec.load_spec(write(EMULATED + neutral)) == spec.load_spec(write(EMULATED))


def test_a_missing_name_is_told(write):
    assert refused(write('engine = "emulated"\n')).message.endswith("name is missing")


def test_all_problems_are_listed_and_the_first_in_the_file_comes_first(write):
    error = refused(write('name = "a b"\nslo = 0\n[train]\ndevices = 0\n'))
    assert ":1: name is 'a b'" in error.message
    assert error.message.endswith("(and 2 more)")
    assert [problem["line"] for problem in error.details["problems"]] == [1, 2, 4]


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        (
            (
                "[rollout]\nprompts = 3\nsamples_per_prompt = 4\n"
                "[train]\nmini_batch = 8\nmicro_batch = 8"
            ),
            "train.mini_batch is 8, which does not divide the 12 samples",
        ),
        (
            (
                "[rollout]\nprompts = 2\nsamples_per_prompt = 4\n"
                "[train]\nmini_batch = 16\nmicro_batch = 4"
            ),
            "train.mini_batch is 16, which does not divide the 8 samples",
        ),
        (
            "[train]\ndevices = 3\nmini_batch = 32\nmicro_batch = 8",
            "train.micro_batch 8 × train.devices 3 is 24",
        ),
        ("[rollout]\nsamples_per_prompt = 1", "write at least 2"),
    ],
)
def test_batches_of_a_real_job_must_divide(write, real, numbers, message):
    assert message in refused(write(real + numbers + "\n")).message


def test_a_real_job_needs_its_files(write, real, tmp_path):
    assert "model.path is missing" in refused(write('name = "a"\n')).message
    (tmp_path / "words.py").unlink()
    assert f"job.toml:5: prompts: no {tmp_path}/words.py" in refused(write(real)).message


def test_a_script_takes_the_place_of_the_recipe(write, tmp_path):
    (tmp_path / "loop.py").write_text("")
    job = spec.load_spec(write('name = "a"\nscript = "loop.py"\n'))
    assert (job.recipe, job.script) == (None, str(tmp_path / "loop.py"))
    assert "no " in refused(write('name = "a"\nscript = "gone.py"\n')).message


def test_a_spec_survives_the_round_trip_through_json(write, real):
    for text in (real, EMULATED + 'labels = {a = "b"}\n[emulated]\nrollout = "3s"\n'):
        job = spec.load_spec(write(text))
        document = json.loads(json.dumps(spec.spec_document(job)))
        assert spec.spec_from_document(document) == job


def test_keys_of_a_newer_rmux_are_ignored_when_a_document_is_read_back():
    document = spec.spec_document(JobSpec(name="a"))
    document["later"] = 1
    document["rollout"]["later"] = 1
    del document["checkpoint"]
    assert spec.spec_from_document(document) == JobSpec(name="a")


def test_the_hash_changes_with_what_changes_phase_times_and_with_nothing_else():
    base = JobSpec(name="a", model_path="/m")
    same = dataclasses.replace(
        base,
        name="b",
        iterations=99,
        seed=4,
        slo=1.1,
        restart_limit=0,
        labels=(("a", "b"),),
        train=TrainSpec(learning_rate=1.0),
        checkpoint=CheckpointSpec(keep=9),
    )
    assert spec.spec_hash(base).startswith("x3:")
    assert spec.spec_hash(same) == spec.spec_hash(base)
    different = [
        dataclasses.replace(base, model_path="/n"),
        dataclasses.replace(base, rollout=RolloutSpec(max_tokens=257)),
        dataclasses.replace(base, train=TrainSpec(devices=2)),
        dataclasses.replace(base, engine=Engine.EMULATED),
        dataclasses.replace(base, max_staleness=1),
        dataclasses.replace(base, checkpoint=CheckpointSpec(every=2)),
    ]
    assert len({spec.spec_hash(item) for item in [base, *different]}) == 7


VALUES = st.recursive(
    st.one_of(st.booleans(), st.integers(-5, 5), st.floats(allow_nan=False), st.text(max_size=5)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=2), st.dictionaries(st.text(max_size=3), inner, max_size=2)
    ),
    max_leaves=3,
)
KEYS = st.sampled_from(["name", "slo", "rollout", "train", "labels", "seed", "emulated", "x"])


def outcome(document):
    """'' for a spec, the message of a plain error; anything else is raised."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spec, "read_toml", lambda _path: (document, ""))
        try:
            return "" if spec.load_spec("any.toml").name else "no name"
        except SpecError as error:
            return error.message


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(KEYS, VALUES, max_size=4))
def test_no_document_leads_to_anything_but_a_spec_or_a_plain_error(document):
    message = outcome(document)
    assert message == "" or message.startswith("any.toml: ")


def test_a_fuzzed_document_can_also_be_a_good_one():
    assert outcome({"name": "a", "engine": "emulated"}) == ""


def test_dapo_has_a_wider_upper_clip_and_a_refill_unless_the_spec_says_otherwise(write, real):
    named = real.replace('name = "words"\n', 'name = "words"\nrecipe = "dapo"\n')
    job = spec.load_spec(write(named))
    assert (job.train.clip_low, job.train.clip_high, job.rollout.refills) == (0.2, 0.28, 1)
    said = spec.load_spec(write(named + "[rollout]\nrefills = 0\n[train]\nclip_high = 0.3\n"))
    assert (said.train.clip_high, said.rollout.refills) == (0.3, 0)
    plain = spec.load_spec(write(real))
    assert (plain.train.clip_high, plain.rollout.refills) == (0.2, 0)


@pytest.mark.parametrize(
    ("recipe", "lines", "message"),
    [
        ("grpo", "[rollout]\nrefills = 1", "rollout.refills is for recipe 'dapo' only"),
        ("ppo", "[rollout]\nrefills = 1", "rollout.refills is for recipe 'dapo' only"),
        ("grpo", "[train]\ngamma = 0.9", "train.gamma is for recipe 'ppo' only"),
        ("dapo", "[train]\nvalue_clip = 0.1", "train.value_clip is for recipe 'ppo' only"),
        ("dapo", '[train]\nmean = "sequence"', "recipe 'dapo' averages over tokens"),
        ("dapo", "[rollout]\nsamples_per_prompt = 1", "recipe 'dapo' compares the samples"),
        ("ppo", "[train]\ngae_lambda = 1.5", "train.gae_lambda is 1.5; it must be at most 1"),
    ],
)
def test_what_a_recipe_has_no_use_for_is_refused(write, real, recipe, lines, message):
    named = real.replace('name = "words"\n', f'name = "words"\nrecipe = "{recipe}"\n')
    assert message in refused(write(f"{named}{lines}\n")).message


def test_ppo_needs_no_group_and_its_keys_are_read(write, real):
    named = real.replace('name = "words"\n', 'name = "words"\nrecipe = "ppo"\n')
    lines = "[rollout]\nprompts = 32\nsamples_per_prompt = 1\n[train]\ngamma = 0.9\nkl = 0.1\n"
    job = spec.load_spec(write(named + lines))
    assert (job.recipe, job.train.gamma, job.train.kl) == ("ppo", 0.9, 0.1)
    assert spec.spec_from_document(spec.spec_document(job)) == job


def test_what_changes_the_loss_alone_leaves_the_profile_and_what_adds_a_model_does_not():
    one = JobSpec(name="a", recipe="ppo")
    same = dataclasses.replace(one, train=TrainSpec(gamma=0.5, mean="sequence", value_weight=2.0))
    other = dataclasses.replace(one, train=TrainSpec(kl=0.1))
    assert spec.spec_hash(same) == spec.spec_hash(one) != spec.spec_hash(other)
    assert spec.spec_hash(dataclasses.replace(one, recipe="grpo")) != spec.spec_hash(one)
