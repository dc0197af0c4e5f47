import pytest

import rmux
from rmux.errors import SpecError, UserError
from rmux.run.driver import local

EMULATED = """
name = "small"
engine = "emulated"
[emulated]
init = "1ms"
rollout = "1ms"
train = "1ms"
switch = "2ms"
"""


@pytest.fixture(autouse=True)
def fresh_engines(monkeypatch):
    monkeypatch.delenv("RMUX_SPEC", raising=False)
    local._started.cache_clear()
    yield
    local._started.cache_clear()


@pytest.fixture
def spec(tmp_path):
    path = tmp_path / "job.toml"
    path.write_text(EMULATED)
    return str(path)


def test_outside_rmux_a_phase_is_a_plain_call_and_any_order_goes():
    called = []

    @rmux.phase("train", wake=lambda: called.append("wake"))
    def train(x, *, y):
        """Trains."""
        return x + y

    assert train(1, y=2) == 3
    assert called == []
    assert (train.__name__, train.__doc__) == ("train", "Trains.")


def test_outside_rmux_a_hook_is_a_plain_call():
    assert rmux.runtime_hook(lambda progress: progress["tokens"])({"tokens": 5}) == 5


def test_an_unknown_phase_is_refused_with_the_known_ones():
    with pytest.raises(UserError, match="'rolout' is not a phase") as raised:
        rmux.phase("rolout")
    assert "init, rollout, train, sync" in raised.value.hint


@pytest.mark.parametrize("name", ["sync", "init"])
def test_phases_without_a_device_take_no_callbacks(name):
    with pytest.raises(UserError, match="neither park= nor wake="):
        rmux.phase(name, park=print)


def test_outside_rmux_the_handles_start_the_spec_s_engines_once(spec):
    fleet, trainer = rmux.fleet(spec=spec), rmux.trainer(spec=spec)
    assert trainer.publish(fleet).version == 1
    sampling = local_sampling()
    assert rmux.fleet(spec=spec).generate([(1,)], sampling=sampling)[0].weight_version == 1


def test_the_spec_may_come_from_the_environment(spec, monkeypatch):
    monkeypatch.setenv("RMUX_SPEC", spec)
    assert len(rmux.fleet().generate([(1,)], sampling=local_sampling())) == 1


def test_handles_without_a_spec_say_how_to_give_one():
    with pytest.raises(UserError, match="need a spec outside rmux") as raised:
        rmux.fleet()
    assert "RMUX_SPEC" in raised.value.hint


def test_handles_of_a_spec_without_a_model_are_refused(tmp_path):
    (tmp_path / "job.py").write_text("")
    path = tmp_path / "own.toml"
    path.write_text('name = "own"\nscript = "job.py"\n')
    with pytest.raises(UserError, match="names no model"):
        rmux.trainer(spec=str(path))


def test_a_bad_spec_is_refused(tmp_path):
    path = tmp_path / "bad.toml"
    path.write_text('nam = "x"\n')
    with pytest.raises(SpecError, match="nam"):
        rmux.fleet(spec=str(path))


def local_sampling():
    from rmux.run.driver.engines import Sampling

    return Sampling()
