import threading

import pytest

from rmux.errors import UserError
from rmux.job import Phase
from rmux.run.driver.order import Order

STEPS = (Phase.ROLLOUT, Phase.TRAIN, Phase.SYNC)


def go(order, phase):
    iteration = order.begin(phase)
    order.end(phase)
    if phase is Phase.SYNC:
        order.end_iteration()
    return iteration


def elsewhere(function):
    """What it returned or raised in another thread."""
    found = []

    def run():
        try:
            found.append(function())
        except UserError as error:
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return found[0]


def roll_out(order):
    return elsewhere(lambda: go(order, Phase.ROLLOUT))


def reachable(order_of, words):
    """Which phases each word of phases leaves open."""
    found = {}
    for word in words:
        for phase in STEPS:
            order = order_of()
            for one in word:
                roll_out(order) if one is Phase.ROLLOUT else go(order, one)
            begun = elsewhere(lambda order=order, phase=phase: order.begin(phase))
            if not isinstance(begun, UserError):
                found.setdefault(word, []).append((phase, begun))
    return found


def test_on_policy_the_phases_of_an_iteration_follow_each_other():
    order = Order(finished=3, max_staleness=0)
    assert [go(order, phase) for phase in STEPS * 2] == [3, 3, 3, 4, 4, 4]
    with pytest.raises(UserError, match="train was called where rollout is due after sync"):
        order.begin(Phase.TRAIN)


def test_one_step_off_policy_a_rollout_is_one_iteration_ahead_and_never_two():
    r, t, s = STEPS
    found = reachable(
        lambda: Order(finished=0, max_staleness=1),
        [(), (r,), (r, r), (r, r, t), (r, r, t, s), (r, t, s), (r, t)],
    )
    assert found == {
        (): [(r, 0)],
        (r,): [(r, 1), (t, 0)],
        (r, r): [(t, 0)],
        (r, r, t): [(s, 0)],
        (r, r, t, s): [(r, 2), (t, 1)],
        (r, t, s): [(r, 1)],
        (r, t): [(r, 1), (s, 0)],
    }


def test_one_step_off_policy_every_order_that_is_allowed_keeps_samples_one_version_fresh():
    def grow(word, versions):
        """Whole words of six phases, with the weights that each rollout could have had."""
        order = Order(finished=0, max_staleness=1)
        for phase in word:
            roll_out(order) if phase is Phase.ROLLOUT else go(order, phase)
        if len(word) == 6:
            return 1
        count = 0
        for phase in STEPS:
            iteration = elsewhere(lambda phase=phase: order.begin(phase))
            if isinstance(iteration, UserError):
                continue
            order.give_up(phase)
            known = dict(versions)
            if phase is Phase.ROLLOUT:
                known[iteration] = order.finished
            elif phase is Phase.TRAIN:
                assert order.finished - known[iteration] in (0, 1)
            count += grow((*word, phase), known)
        return count

    assert grow((), {}) == 9


@pytest.mark.parametrize(("first", "second"), [STEPS[:2], STEPS[1::-1]])
def test_a_rollout_runs_beside_a_train_in_another_thread(first, second):
    order = Order(finished=0, max_staleness=1)
    go(order, Phase.ROLLOUT)
    numbers = {Phase.ROLLOUT: 1, Phase.TRAIN: 0}
    for phase in (first, second):
        if phase is Phase.TRAIN:
            begun = order.begin(phase)
        else:
            begun = elsewhere(lambda: order.begin(Phase.ROLLOUT))
        assert begun == numbers[phase]
    assert order.current == (Phase.ROLLOUT, 1)


def test_no_two_phases_run_at_once_on_policy():
    order = Order(finished=0, max_staleness=0)
    order.begin(Phase.ROLLOUT)
    error = elsewhere(lambda: order.begin(Phase.TRAIN))
    assert "while phase rollout runs in another thread" in str(error)
    assert "max_staleness = 1" in error.hint
    with pytest.raises(UserError, match="inside phase rollout"):
        order.begin(Phase.TRAIN)


def test_only_a_rollout_runs_beside_another_phase():
    order = Order(finished=0, max_staleness=1)
    order.begin(Phase.ROLLOUT)
    assert "another thread" in str(elsewhere(lambda: order.begin(Phase.ROLLOUT)))
    with pytest.raises(UserError, match="inside phase rollout"):
        order.begin(Phase.TRAIN)
    order.end(Phase.ROLLOUT)
    order.begin(Phase.TRAIN)
    assert "another thread" in str(elsewhere(lambda: order.begin(Phase.SYNC)))


def test_a_phase_that_failed_is_due_again():
    for staleness in (0, 1):
        order = Order(finished=0, max_staleness=staleness)
        go(order, Phase.ROLLOUT)
        order.begin(Phase.TRAIN)
        order.give_up(Phase.TRAIN)
        assert order.begin(Phase.TRAIN) == 0


def test_an_attempt_is_at_rest_only_between_its_iterations():
    order = Order(finished=0, max_staleness=1)
    rest = []
    for phase in STEPS:
        order.begin(phase)
        rest.append(order.is_at_rest)
        order.end(phase)
        rest.append(order.is_at_rest)
    order.end_iteration()
    assert rest == [True, False, False, False, False, False]
    assert order.is_at_rest


def test_the_main_thread_cannot_sample_ahead_as_nobody_would_train_meanwhile():
    order = Order(finished=0, max_staleness=1)
    go(order, Phase.ROLLOUT)
    with pytest.raises(UserError, match="rollout was called where train of iteration 0 is due"):
        order.begin(Phase.ROLLOUT)
    assert roll_out(order) == 1
