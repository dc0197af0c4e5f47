"""The controller's one decision: state and news in, new state and commands out. No I/O, no clock.

The same news twice, or old news again, changes nothing: reports carry whole positions, events are
numbered, and a phase is granted once however often it is wanted.
"""

from __future__ import annotations

import logging

from rmux.cluster import DeviceId
from rmux.events import EventType, PhaseEvent, from_document
from rmux.ids import JobId, NodeId
from rmux.job import Phase
from rmux.place import rotation as rotations
from rmux.place.residency import job_memory
from rmux.place.rotation import Wanted
from rmux.run.controller import ledger, members, plan
from rmux.run.controller.state import Command, Gate, GroupView, Inputs, Run, State, UpdateJob
from rmux.run.controller.turn import Turn
from rmux.run.messages import DeviceReport, DriverOrder, DriverStatus, Grant, Grants, NodeReport
from rmux.run.nexts import is_news

logger = logging.getLogger(__name__)

_MAX_UNSTORED = 20_000
"""Events on their way to a locked store; past it drivers and runners keep theirs."""


def step(state: State, inputs: Inputs) -> tuple[State, tuple[Command, ...]]:
    """One turn: take the news in, move the members on, give what can be given, tell the gates."""
    turn = Turn(state, inputs)
    if inputs.stored_n is not None:
        _take_stored(turn, inputs.stored_n)
    if inputs.view is not None:
        _take_view(turn, inputs.view)
    if inputs.stop or turn.state.desired == "down":
        if turn.state.stop_by_s == float("inf"):
            turn.set(stop_by_s=turn.now_s + turn.limits.stop_s)
    elif turn.state.stop_by_s < float("inf"):
        turn.set(stop_by_s=float("inf"))
    for report in inputs.reports:
        _take_report(turn, report)
    if _is_ready(turn):
        members.move_on(turn)
        if inputs.may_grant and turn.state.stop_by_s == float("inf"):
            _grant(turn)
        _tell_gates(turn)
        _finish(turn)
    return turn.close()


def _take_stored(turn: Turn, stored_n: int) -> None:
    for batch_n, source, number in turn.unstored:
        if batch_n <= stored_n:
            turn.acks[source] = max(number, turn.acks.get(source, 0))
    turn.unstored = [entry for entry in turn.unstored if entry[0] > stored_n]
    turn.set(stored_n=max(stored_n, turn.state.stored_n))


def _take_view(turn: Turn, view: GroupView) -> None:
    planned = _planned(turn)
    turn.set(nodes=view.nodes, desired=view.desired, turns=view.turns)
    wanted = {member.job.id: member for member in view.members}
    for job_id in [job_id for job_id in turn.runs if job_id not in wanted]:
        if turn.runs[job_id].ended or not turn.runs[job_id].ordered:
            del turn.runs[job_id]
    for job_id, member in wanted.items():
        known = turn.runs.get(job_id)
        if known is None:
            turn.runs[job_id] = Run(
                view=member,
                attempt=member.job.attempt,
                state=member.job.state,
                failures=view.failures.get(job_id, 0),
                rewarded=member.job.reward_first is not None,
            )
            if turn.state.ready:
                members.adopt(turn, turn.runs[job_id])
        else:
            turn.change(known, view=member)
    slacks_s = ledger.slacks_s([one.member for one in view.members], turns=view.turns)
    for job_id, slack_s in slacks_s.items():
        turn.change(turn.runs[job_id], slack_s=slack_s)
    if not turn.state.ready and view.open_grants:
        turn.set(open_grants=view.open_grants)
    turn.set(had_member=turn.state.had_member or view.had_member or bool(wanted))
    if turn.rotation is not None:
        _turn_members(turn)
    if _planned(turn) != planned:
        turn.latest.forget()
    _forget_sources(turn)


def _planned(turn: Turn) -> tuple[object, ...]:
    """What the plan of the group rests on."""
    return turn.state.turns, {job_id: run.view.member for job_id, run in turn.runs.items()}


def _forget_sources(turn: Turn) -> None:
    """A source counts while a gate may still repeat its events."""
    names = {gate.report.runner for gate in turn.gates.values()} | set(turn.runs)
    names |= {status.job for gate in turn.gates.values() for status in gate.report.drivers}
    for source in [*turn.seen]:
        if source not in names and source.partition("/")[0] not in names:
            turn.seen.pop(source)
            turn.acks.pop(source, None)


def _turn_members(turn: Turn) -> None:
    assert turn.rotation is not None
    now = [run.view.member for run in turn.runs.values() if not run.ended]
    turn.rotation = rotations.with_members(turn.rotation, now, turns=turn.state.turns)


def _take_report(turn: Turn, report: NodeReport) -> None:
    node = NodeId(report.node)
    turn.gates[node] = Gate(report=report, heard_s=turn.now_s)
    if report.resident_bytes:
        ledger.note_memory(turn, node, report.resident_bytes, dict(report.jobs_bytes))
    for job, attempt, why in report.stops:
        ledger.note_stop(turn, JobId(job), attempt, why)
    for device in report.devices:
        _take_device(turn, device)
    for status in report.drivers:
        _take_status(turn, node, status)
    for document in report.events:
        _take_event(turn, document)


def _take_device(turn: Turn, report: DeviceReport) -> None:
    device = DeviceId.parse(report.device)
    turn.seqs[device] = max(report.seq, turn.seqs.get(device, 0))
    run = turn.runs.get(JobId(report.job)) if report.overdue else None
    if run is not None and run.attempt == report.attempt and not run.fence:
        # Its driver may live on another node: that node's runner kills it.
        turn.change(run, fence=report.overdue)
    grant = turn.held.get(device)
    if grant is None:
        if not turn.state.ready and report.state in ("granted", "running"):
            # Given by the controller before this one, and still out.
            turn.held[device] = _granted_before(turn, report)
    elif report.state == "released" and (report.epoch, report.seq) == grant.order:
        del turn.held[device]
        plan.note_release(turn, grant)


def _granted_before(turn: Turn, report: DeviceReport) -> Grant:
    run = turn.runs.get(JobId(report.job))
    return Grant(
        device=report.device,
        epoch=report.epoch,
        seq=report.seq,
        job=report.job,
        attempt=report.attempt,
        iteration=report.iteration,
        phase=report.phase,
        bound_s=turn.limits.fence_floor_s if run is None else plan.bound_s(turn, run, report.phase),
    )


def _take_status(turn: Turn, node: NodeId, status: DriverStatus) -> None:
    run = turn.runs.get(JobId(status.job))
    if run is None or run.ended or status.attempt != run.attempt:
        return
    home = turn.gates.get(run.home)
    is_home = node == run.home
    # One source at a time, so that what it says is in order; another only while home is silent.
    silent = home is None or turn.now_s - home.heard_s > turn.limits.silent_s
    if not is_home and (not silent or status.state not in ("starting", "running", "paused")):
        return
    if run.ordered:
        members.note_want(turn, run, status)
    run = turn.runs[run.job_id]
    if _took_back(run.status, status):
        # Its rollout went on without the devices it still waited for: what comes next comes now.
        run = turn.change(run, due_s=max(run.due_s, plan.ready_by_s(turn, run, Phase.ROLLOUT)))
    run = turn.change(run, status=status)
    for job_id, device in [key for key in turn.granted if key[0] == run.job_id]:
        if not _still_wants(status, device, turn.granted[job_id, device]):
            del turn.granted[job_id, device]


def _took_back(before: DriverStatus | None, now: DriverStatus) -> bool:
    """Whether a rollout that was waited for is wanted no more."""
    return any(
        want.phase == Phase.ROLLOUT and not any(w.phase == Phase.ROLLOUT for w in now.wants)
        for want in (before.wants if before else ())
    )


def _still_wants(status: DriverStatus, device: DeviceId, key: tuple[int, str, int]) -> bool:
    return any(
        (status.attempt, want.phase, want.iteration) == key and str(device) in want.devices
        for want in status.wants
    )


def _take_event(turn: Turn, document: dict[str, object]) -> None:
    try:
        event = from_document(document)
    except (ValueError, KeyError, TypeError) as error:
        logger.warning("dropped an event that cannot be read: %s", error)
        return
    if event.source_n <= turn.seen.get(event.source, 0) or len(turn.unstored) > _MAX_UNSTORED:
        return
    turn.seen[event.source] = event.source_n
    turn.append(event)
    run = turn.runs.get(event.job_id) if event.job_id else None
    if run is not None and event.data.get("attempt") in (None, run.attempt):
        _note_event(turn, run, event)


def _note_event(turn: Turn, run: Run, event: PhaseEvent) -> None:
    """What `job ls` shows of it."""
    columns: dict[str, object] = {}
    ledger.note_spill(turn, run, event)
    if event.type is EventType.ITERATION_END and event.iteration is not None:
        columns["iteration"] = event.data.get("finished", event.iteration + 1)
        reward = event.data.get("reward")
        if isinstance(reward, int | float):
            columns["reward_last"] = float(reward)
            if not run.rewarded:
                columns["reward_first"] = float(reward)
                turn.change(run, rewarded=True)
    elif event.type is EventType.PHASE_START:
        columns |= {"phase": event.phase, "phase_state": "running"}
    elif event.type is EventType.PHASE_END:
        columns["phase_state"] = ""
    if columns:
        turn.write(UpdateJob(job_id=run.job_id, columns=tuple(columns.items())))


def _is_ready(turn: Turn) -> bool:
    """Whether every gate told its position; until then nothing is granted or ordered."""
    if turn.state.ready or turn.state.nodes is None:
        return turn.state.ready
    waited_s = turn.now_s - turn.state.started_s
    silent = [node for node in turn.state.nodes if node not in turn.gates]
    if silent and waited_s < turn.limits.gate_wait_s:
        return False
    turn.set(ready=True)
    for run in list(turn.runs.values()):
        members.adopt(turn, run)
    members_now = [run.view.member for run in turn.runs.values()]
    holders = {device: JobId(grant.job) for device, grant in turn.held.items()}
    turn.rotation = rotations.start(members_now, turns=turn.state.turns, held=holders)
    turn.emit(
        EventType.CONTROLLER,
        data={"epoch": turn.state.epoch, "change": "ready", "wait_s": waited_s, "silent": silent},
    )
    for grant in turn.held.values():
        turn.emit_grant(EventType.GRANT, grant, adopted=True)
    for grant in turn.state.open_grants:
        device = DeviceId.parse(grant.device)
        held = turn.held.get(device)
        if (held is None or held.order != grant.order) and device.node in turn.gates:
            # Its gate died with its word; the one there now finds nobody on the device.
            turn.emit_grant(EventType.RELEASED, grant, found=True)
    return True


def _grant(turn: Turn) -> None:
    assert turn.rotation is not None
    wants = {}
    absent = set()
    late = set()
    for run in turn.runs.values():
        if wanted := _wanted(turn, run):
            wants[run.job_id] = wanted
        elif not members.is_present(run):
            absent.add(run.job_id)
        elif turn.now_s > run.due_s:
            late.add(run.job_id)
    given, turn.rotation = rotations.next_turns(
        turn.rotation, wants=wants, busy=_busy(turn), absent=absent, late=late
    )
    for one in given:
        _give(turn, turn.runs[one.job_id], one.device, one.phase, one.iteration)


def _wanted(turn: Turn, run: Run) -> tuple[Wanted, ...]:
    """What the job is ready for and was not granted yet, each with the devices it still lacks."""
    if not members.is_running(run) or run.status is None:
        return ()
    found = []
    for want in run.status.wants:
        key = (run.attempt, want.phase, want.iteration)
        devices = tuple(
            device
            for device in map(DeviceId.parse, want.devices)
            if turn.granted.get((run.job_id, device)) != key
        )
        if devices:
            found.append(Wanted(phase=Phase(want.phase), iteration=want.iteration, devices=devices))
    return tuple(found)


def _busy(turn: Turn) -> set[DeviceId]:
    """Devices that are out, or whose gate cannot be told anything now."""
    assert turn.rotation is not None
    busy = set(turn.held)
    for device in turn.rotation.cursors:
        gate = turn.gates.get(device.node)
        if gate is None or turn.now_s - gate.heard_s > turn.limits.silent_s:
            busy.add(device)
    return busy


def _give(turn: Turn, run: Run, device: DeviceId, phase: Phase, iteration: int) -> None:
    turn.seqs[device] = turn.seqs.get(device, 0) + 1
    grant = Grant(
        device=str(device),
        epoch=turn.state.epoch,
        seq=turn.seqs[device],
        job=run.job_id,
        attempt=run.attempt,
        iteration=iteration,
        phase=str(phase),
        bound_s=plan.bound_s(turn, run, phase),
    )
    turn.held[device] = grant
    turn.granted[run.job_id, device] = (run.attempt, str(phase), iteration)
    turn.emit_grant(EventType.GRANT, grant)
    run = plan.note_grant(turn, run, grant)
    due_s = plan.ready_by_s(turn, run, phase)
    if run.view.member.max_staleness and turn.now_s < run.due_s < float("inf"):
        # The phase given before may still run: what comes after that one may take as long.
        due_s = max(due_s, run.due_s)
    turn.change(run, in_init=phase is Phase.INIT, due_s=due_s)


def _tell_gates(turn: Turn) -> None:
    """Each gate its whole position, when it changed and on every heartbeat."""
    nodes = {node for run in turn.runs.values() for node in run.gates} | set(turn.gates)
    for node in sorted(nodes):
        grants = Grants(
            group=turn.state.group_id,
            epoch=turn.state.epoch,
            grants=tuple(turn.held[device] for device in sorted(turn.held) if device.node == node),
            drivers=tuple(_orders(turn, node)),
            acks=_acks(turn, node),
            nexts=plan.nexts(turn, node),
        )
        before, sent_s = turn.sent.get(node, (None, float("-inf")))
        elapsed_s = turn.now_s - sent_s
        if elapsed_s >= turn.limits.heartbeat_s or is_news(before, grants, elapsed_s=elapsed_s):
            turn.send(node, grants)


def _orders(turn: Turn, node: NodeId) -> list[DriverOrder]:
    return [
        DriverOrder(
            job=run.job_id,
            attempt=run.attempt,
            desired=members.desired(turn, run),
            home=run.home,
            fence=run.fence,
            planned_bytes=job_memory(run.view.member, node).most_bytes,
            slack_s=run.slack_s,
        )
        for run in turn.runs.values()
        if members.is_running(run) and node in run.gates
    ]


def _acks(turn: Turn, node: NodeId) -> tuple[tuple[str, int], ...]:
    gate = turn.gates.get(node)
    names = {str(run.job_id) for run in turn.runs.values() if run.home == node}
    if gate is not None:
        names |= {gate.report.runner} | {status.job for status in gate.report.drivers}
    return tuple(
        (source, number)
        for source, number in sorted(turn.acks.items())
        if source in names or source.partition("/")[0] in names
    )


def _finish(turn: Turn) -> None:
    state = turn.state
    all_stored = not turn.has_writes and state.stored_n >= state.batch_n
    if not all_stored and turn.now_s < state.stop_by_s + state.limits.stop_s:
        return
    going_down = state.stop_by_s < float("inf")
    if going_down and not any(run.ordered and not run.ended for run in turn.runs.values()):
        turn.finish("down")
    elif not turn.runs and state.had_member and not state.stay and not going_down:
        turn.finish("every member ended")
