import json
import os
import signal
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from rmux.cluster import PoolKind
from rmux.errors import BackendError
from rmux.events import EventType
from rmux.job import CheckpointSpec, EmulatedSpec, Engine, Phase
from rmux.run.channel import MemoryChannel
from rmux.run.driver import checkpoint
from rmux.run.driver.loop import run_driver
from rmux.run.workers.emulated import EmulatedEngines

LOOP = """
import os, rmux
rollout, train, sync = (rmux.phase(name)(lambda: None) for name in ("rollout", "train", "sync"))
for _ in range(int(os.environ["RMUX_START_ITERATION"]), int(os.environ["RMUX_ITERATIONS"])):
    rollout(); train(); sync()
"""


def test_an_emulated_job_runs_init_then_its_iterations_and_succeeds(drive, gate, make_config):
    assert drive(make_config()) == 0
    assert gate.states == ["starting", "running", "succeeded"]
    assert gate.report.status.iteration == 2
    phases = [(e.phase, e.iteration) for e in gate.of_type(EventType.PHASE_END)]
    assert {phase for phase, _ in phases[:2]} == {Phase.INIT}
    loop = [Phase.ROLLOUT, Phase.TRAIN, Phase.SYNC]
    assert phases[2:] == [(phase, iteration) for iteration in (0, 1) for phase in loop]
    rewards = [e.data["reward"] for e in gate.of_type(EventType.ITERATION_END)]
    assert rewards == [pytest.approx(1 / 2), pytest.approx(2 / 3)]
    assert [e.data["weight_version"] for e in gate.of_type(EventType.ITERATION_END)] == [1, 2]


def test_init_uses_each_pool_as_it_is_granted(drive, gate, make_config):
    drive(make_config(rollout=("r/0", "r/1")))
    starts = gate.of_type(EventType.PHASE_START, Phase.INIT)
    assert {start.data["pool"]: start.data["devices"] for start in starts} == {
        "rollout": ["r/0", "r/1"],
        "train": ["t/0"],
    }


def test_the_next_attempt_goes_on_where_the_checkpoint_ends(drive, gate, make_config):
    config = make_config(iterations=3)
    assert drive(replace(config, spec=replace(config.spec, iterations=1))) == 0
    assert drive(replace(config, attempt=2)) == 0
    ends = [e for e in gate.of_type(EventType.ITERATION_END) if e.data["attempt"] == 2]
    assert [end.iteration for end in ends] == [1, 2]
    assert [end.data["weight_version"] for end in ends] == [2, 3]


def test_checkpoints_are_written_when_due_and_after_the_last_iteration(drive, make_config, gate):
    config = make_config(iterations=5, checkpoint=CheckpointSpec(every=2, keep=9))
    drive(config)
    assert [e.iteration for e in gate.of_type(EventType.CHECKPOINT)] == [1, 3, 4]
    assert checkpoint.latest(config.run_dir).iteration == 5


def test_a_script_runs_as_main_in_its_folder(drive, gate, make_config, script, tmp_path):
    path = script(
        "import json, os, pathlib, sys\n"
        "facts = [__name__, os.getcwd(), sys.argv, sys.path[0]]\n"
        "pathlib.Path('facts.json').write_text(json.dumps(facts))\n" + LOOP
    )
    assert drive(make_config(recipe=None, script=path)) == 0
    facts = json.loads((tmp_path / "facts.json").read_text())
    assert facts == ["__main__", str(tmp_path), [path], str(tmp_path)]
    assert gate.report.status.iteration == 2


def test_a_script_with_its_own_engines_gets_no_init_and_is_itself_to_be_idle(
    drive, gate, make_config, script
):
    config = make_config(recipe=None, script=script(LOOP), engine=Engine.REAL, iterations=2)
    assert drive(config) == 0
    assert gate.of_type(EventType.PHASE_START, Phase.INIT) == []
    assert os.getpid() in gate.ended["r/0"][1].pids
    assert gate.of_type(EventType.CHECKPOINT) == []
    assert checkpoint.latest(config.run_dir).iteration == 2


def test_a_script_without_a_model_has_no_handles(drive, gate, make_config, script):
    path = script("import rmux\nrmux.fleet()\n")
    assert drive(make_config(recipe=None, script=path, engine=Engine.REAL)) == 1
    assert "rmux.fleet() needs a model" in gate.report.status.error
    assert "hint: add [model]" in gate.report.status.error


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("raise SystemExit(3)", "the script ended with status 3"),
        ("import rmux\nrmux.phase('train')(print)()", "where rollout is due first"),
    ],
)
def test_a_script_that_fails_is_reported_with_its_last_words(
    drive, gate, make_config, script, text, shown
):
    assert drive(make_config(recipe=None, script=script(text))) == 1
    assert gate.states[-1] == "failed"
    assert shown in gate.report.status.error


def test_a_link_that_breaks_ends_the_job_with_its_error(drive, gate, make_config, monkeypatch):
    def broken(self):
        if gate.of_type(EventType.PHASE_START, Phase.ROLLOUT):
            raise ValueError("no such host")
        return ()

    monkeypatch.setattr(EmulatedEngines, "spilled", broken)
    assert drive(make_config(emulated=LONG)) == 1
    assert gate.states[-1] == "failed"
    assert "ValueError: no such host" in gate.report.status.error
    assert {use.state for use in gate.report.uses} == {"parked"}


def test_a_script_may_end_with_exit_zero(drive, gate, make_config, script):
    assert drive(make_config(recipe=None, script=script(LOOP + "raise SystemExit(0)"))) == 0
    assert gate.states[-1] == "succeeded"


def test_a_cancelled_job_ends_as_cancelled(drive, gate, make_config):
    gate.desired = "cancel"
    assert drive(make_config()) == 0
    assert gate.states[-1] == "cancelled"
    assert gate.report.status.iteration == 0


LONG = EmulatedSpec(init_s=0.0, rollout_s=30.0, train_s=0.0)


def after_first_start(gate, act):
    def watch():
        while not gate.of_type(EventType.PHASE_START, Phase.ROLLOUT):
            threading.Event().wait(0.002)
        act()

    threading.Thread(target=watch, daemon=True).start()


def test_sigterm_ends_a_running_phase_and_leaves_the_job_to_be_resumed(drive, gate, make_config):
    after_first_start(gate, lambda: os.kill(os.getpid(), signal.SIGTERM))
    assert drive(make_config(emulated=LONG)) == 143
    assert gate.states[-1] == "running"
    assert {use.state for use in gate.report.uses} == {"parked"}
    assert gate.report.status.wants == ()


def test_cancel_now_ends_a_running_phase_as_cancelled(drive, gate, make_config):
    after_first_start(gate, lambda: setattr(gate, "desired", "cancel-now"))
    assert drive(make_config(emulated=LONG)) == 0
    assert gate.states[-1] == "cancelled"


def test_the_signal_handlers_of_the_process_come_back(drive, make_config):
    before = signal.getsignal(signal.SIGTERM)
    drive(make_config(iterations=1))
    assert signal.getsignal(signal.SIGTERM) is before


def test_the_run_directory_is_told_to_the_script(drive, make_config, script, tmp_path):
    path = script("import os, pathlib\npathlib.Path('seen').write_text(os.environ['RMUX_RUN_DIR'])")
    config = make_config(recipe=None, script=path)
    drive(config)
    assert Path((tmp_path / "seen").read_text()) == config.run_dir


class Broken(EmulatedEngines):
    def init(self, kind):
        if kind is PoolKind.TRAIN:
            raise BackendError("the train ranks did not start", details={"stderr": "no room"})
        return super().init(kind)


def test_engines_that_do_not_start_fail_the_job_with_their_stderr(hub, gate, make_config):
    config = make_config()
    gate.serve()
    assert run_driver(config, channel=MemoryChannel(hub), engines=Broken(config)) == 1
    gate.stop()
    gate.hear(timeout_s=0.0)
    assert "the train ranks did not start" in gate.report.status.error
    assert gate.report.status.error.endswith("no room")


def test_the_pools_are_initialised_side_by_side(drive, gate, make_config):
    config = make_config(emulated=EmulatedSpec(init_s=0.2, rollout_s=0.0, train_s=0.0))
    drive(config)
    first, second = gate.of_type(EventType.PHASE_START, Phase.INIT)
    assert abs(first.at_s - second.at_s) < 0.1
