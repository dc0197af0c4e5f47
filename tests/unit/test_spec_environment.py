"""[environment] of a job spec."""

import pytest

from rmux import spec
from rmux.errors import SpecError
from rmux.job import EnvironmentSpec, RewardSpec

HEAD = 'name = "lake"\n[model]\npath = "model"\n'
ENVIRONMENT = '[environment]\nfunction = "lake.py:Lake"\n'


@pytest.fixture
def load(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "lake.py").write_text("")

    def read(text):
        path = tmp_path / "job.toml"
        path.write_text(HEAD + text)
        return spec.load_spec(path)

    return read


def test_an_environment_stands_in_for_prompts_and_reward(load, tmp_path):
    found = load(
        ENVIRONMENT + 'max_turns = 5\nturn_tokens = 1\ntimeout = "2s"\nprocesses = 3\n'
        'time_per_step = "4ms"\nmax_failed = 0.25\n'
    )
    assert found.environment == EnvironmentSpec(
        function=f"{tmp_path}/lake.py:Lake",
        max_turns=5,
        turn_tokens=1,
        timeout_s=2.0,
        processes=3,
        seconds_per_step=0.004,
        max_failed=0.25,
    )
    assert (found.task_module, found.reward) == ("", RewardSpec())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[task]\nprompts = "lake.py:p"\n', "job.toml:5: task.prompts: the environment's reset"),
        ('[reward]\nfunction = "lake.py:r"\n', "reward.function: the environment's step gives"),
    ],
)
def test_prompts_or_rewards_beside_an_environment_are_refused(load, text, message):
    with pytest.raises(SpecError, match="environment") as caught:
        load(text + ENVIRONMENT)
    assert message in caught.value.message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("turn_tokens = 300\n", "turn_tokens is 300, but a whole response has rollout.max_tokens"),
        ("max_turns = 0\n", "environment.max_turns is 0; it must be at least 1"),
        ("max_failed = 1.5\n", "environment.max_failed is 1.5; it must be at most 1"),
        ("max_steps = 3\n", "environment.max_steps is not a key (did you mean max_turns?)"),
    ],
)
def test_a_number_that_no_environment_can_have_is_told(load, text, message):
    with pytest.raises(SpecError) as caught:
        load(ENVIRONMENT + text)
    assert message in caught.value.message


def test_the_file_of_an_environment_has_to_be_there(load, tmp_path):
    (tmp_path / "lake.py").unlink()
    with pytest.raises(SpecError, match="function: no "):
        load(ENVIRONMENT)


def test_a_job_without_an_environment_keeps_its_profile(load):
    """Where there is none its settings change no phase time."""
    tasks = '[task]\nprompts = "lake.py:p"\n[reward]\nfunction = "lake.py:r"\n'
    assert spec.spec_hash(load(tasks)) == spec.spec_hash(load(tasks + "[environment]\n"))
    played = load(ENVIRONMENT)
    assert spec.spec_hash(played) != spec.spec_hash(load(ENVIRONMENT + "max_turns = 3\n"))
    assert spec.spec_hash(played) == spec.spec_hash(load(ENVIRONMENT + "max_failed = 0.1\n"))
