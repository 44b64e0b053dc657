"""Everything that may happen to a fleet between two steps of a coordinator, each as one function.

``draw`` makes the choices. Those that are registered as free are no faults: they happen in a
healthy run too, and do not count against the budget of faults.
"""

from collections.abc import Callable
from typing import TypeAlias

from hypothesis import strategies as st

from dcr.commit.effects import CompareAndSet
from tests.simulation.coordinators import Coordinator
from tests.simulation.fleet import (
    FLIPS,
    MAX_DRAIN_STEPS,
    Draw,
    Fleet,
    has_call,
    is_commit,
    is_gather,
    is_store,
)
from tests.simulation.parties import NUM_OWNERS
from tests.simulation.stores import TRACKER_DISKS
from tests.simulation.world import NAMES, Late

Disturbance: TypeAlias = Callable[[Fleet, Coordinator, Draw], None]
DISTURBANCES: dict[str, Disturbance] = {}
FREE: set[str] = set()
STAGED: set[str] = set()
"""Those that only worlds in asynchronous mode have."""
LATE = st.tuples(st.integers(1, 40), st.booleans())  # steps until it arrives; receivers pump after it
CRASH_AT = st.integers(0, 12)  # 0: not at all
RECEIVER = st.integers(0, len(NAMES) - 1)
DELAY = st.integers(0, 12)
RANK = st.integers(0, NUM_OWNERS - 1)
DURATION = st.integers(1, 60)


def fault(function: Disturbance) -> Disturbance:
    """Register what counts against the budget."""
    DISTURBANCES[function.__name__] = function
    return function


def free(function: Disturbance) -> Disturbance:
    """Register what may happen at any time."""
    FREE.add(function.__name__)
    return fault(function)


def staged(function: Disturbance) -> Disturbance:
    """Register a fault of asynchronous mode."""
    STAGED.add(function.__name__)
    return fault(function)


# ---- a healthy run ----


@free
def train(fleet: Fleet, coordinator: Coordinator, draw: Draw) -> None:
    """An optimizer step that changes little, the same word twice, or nothing (P15)."""
    fleet.train(draw(FLIPS))


@free
def pump(fleet: Fleet, coordinator: Coordinator, draw: Draw) -> None:
    """A receiver applies what is visible before it is asked to finish."""
    receiver = fleet.world.receivers[draw(RECEIVER)]
    if not receiver.gone:
        receiver.pump()


@free
def serve(fleet: Fleet, coordinator: Coordinator, draw: Draw) -> None:
    """A request comes to each receiver, and is answered some steps later."""
    if draw(st.booleans(), "just before the gates are to shut"):
        fleet.reach(coordinator, lambda effect: has_call(effect, "open_apply"))
    for receiver in fleet.world.receivers:
        steps = draw(st.integers(1, 20), "steps")
        if not receiver.gone:
            receiver.serving.enter(steps)


@free
def ask_to_be_admitted(fleet: Fleet, coordinator: Coordinator, draw: Draw) -> None:
    if coordinator.script is None:
        coordinator.ask_admit(NAMES[draw(RECEIVER)])


@free
def ask_for_a_rollback(fleet: Fleet, coordinator: Coordinator, draw: Draw) -> None:
    if coordinator.script is None:
        coordinator.ask_rollback()


@free
def start_receiver(fleet: Fleet, coordinator: Coordinator, draw: Draw) -> None:
    """One that left comes back, or one that was never there comes; it joins by itself."""
    receiver = fleet.world.receivers[draw(st.just(2) | RECEIVER)]
    if receiver.gone:
        receiver.start()


@free
def leave(fleet: Fleet, coordinator: Coordinator, draw: Draw) -> None:
    """A receiver ends on purpose, in whatever a coordinator is."""
    receiver = fleet.world.receivers[draw(RECEIVER)]
    if not receiver.gone and coordinator.leasing is not None:
        receiver.leave()
        coordinator.leave(receiver.name, receiver.incarnation)


@free
def be_slow_to_renew(fleet: Fleet, coordinator: Coordinator, draw: Draw) -> None:
    """Requests for leases of a receiver take their time: to the coordinator, inside it, and back."""
    receiver, delays = fleet.world.receivers[draw(RECEIVER)], draw(st.tuples(DELAY, DELAY, DELAY))
    if not receiver.gone:
        receiver.renewals.delays = delays


@free
def drain(fleet: Fleet, coordinator: Coordinator, draw: Draw) -> None:
    fleet.drain()


# ---- messages ----


@fault
def lose_call(fleet: Fleet, coordinator: Coordinator, draw: Draw) -> None:
    """The answer of one of the next calls is lost; the call too, or its endpoint dies in it."""
    if fleet.reach(coordinator, is_gather):
        call = draw(st.sampled_from(coordinator.pending), "lost")
        executed, crash_at = draw(st.tuples(st.booleans(), CRASH_AT), "executed, crash at")
        coordinator.lose_call(call, executed=executed, crash_at=crash_at)


@fault
def die_in_fold_in(fleet: Fleet, coordinator: Coordinator, draw: Draw) -> None:
    """An owner dies while it writes its trackers."""
    if fleet.reach(coordinator, lambda effect: has_call(effect, "fold_in")):
        call = draw(st.sampled_from(coordinator.pending), "lost")
        coordinator.lose_call(call, executed=True, crash_at=draw(st.integers(4, 7) | st.integers(1, 8), "at"))


@fault
def delay_call(fleet: Fleet, coordinator: Coordinator, draw: Draw) -> None:
    """One of the next calls misses its deadline and arrives later."""
    if fleet.reach(coordinator, is_gather):
        call = draw(st.sampled_from(coordinator.pending), "late")
        fleet.world.late.append(Late(call, *draw(LATE)))
        coordinator.lose_call(call, executed=False, crash_at=0)


@fault
def repeat_call(fleet: Fleet, coordinator: Coordinator, draw: Draw) -> None:
    """One of the next calls is answered, and a copy of it arrives later."""
    if fleet.reach(coordinator, is_gather):
        call = draw(st.sampled_from(coordinator.pending), "repeated later")
        fleet.world.late.append(Late(call, *draw(LATE)))
        coordinator.answer(call, fleet.world.deliver(call))


@fault
def be_slow_to_write(fleet: Fleet, coordinator: Coordinator, draw: Draw) -> None:
    """A receiver is in the midst of a write when its finish misses the deadline, perhaps its stop too."""
    at, left = draw(st.sampled_from([1, 1, 2]), "copy"), draw(st.integers(10, 80), "steps")
    if not fleet.reach(coordinator, lambda effect: has_call(effect, "finish")):
        return
    slow = fleet.world.receivers[draw(RECEIVER)]
    if slow.gone:
        return
    slow.begin_pump(at, left)
    stops_too = draw(st.sampled_from([True, True, False]), "stop is lost too")
    for method in ("finish", "stop_and_wait") if stops_too else ("finish",):
        if fleet.reach(coordinator, lambda effect, method=method: has_call(effect, method)):  # type: ignore[misc]
            for call in coordinator.pending:
                if call.target == slow.name:
                    coordinator.lose_call(call, executed=False, crash_at=0)


@fault
def fail_again_and_again(fleet: Fleet, coordinator: Coordinator, draw: Draw) -> None:
    """Attempt after attempt fails at one of the parties."""
    method = draw(st.sampled_from(["finish", "construct"]), "fails at")
    for _ in range(draw(st.integers(2, 4), "times")):
        if fleet.reach(coordinator, lambda effect: has_call(effect, method)):
            call = draw(st.sampled_from(coordinator.pending), "lost")
            coordinator.lose_call(call, executed=draw(st.booleans(), "executed"), crash_at=draw(CRASH_AT))
            fleet.tick()


@fault
def lose_write(fleet: Fleet, coordinator: Coordinator, draw: Draw) -> None:
    """The next write loses its answer: it took effect, will later, or never will."""
    if fleet.reach(coordinator, lambda effect: isinstance(effect, CompareAndSet)):
        _lose(coordinator, draw)


@fault
def lose_commit(fleet: Fleet, coordinator: Coordinator, draw: Draw) -> None:
    """The one write whose answer matters."""
    if fleet.reach(coordinator, is_commit):
        _lose(coordinator, draw)


def _lose(coordinator: Coordinator, draw: Draw) -> None:
    """It took effect, it will very soon, later, or (0) never."""
    landed = draw(st.booleans(), "landed")
    delay = 0 if landed else draw(st.integers(0, 12), "delay")
    coordinator.lose_write(landed=landed, delay=delay)


# ---- asynchronous mode ----


@staged
def fail_while_staged(fleet: Fleet, coordinator: Coordinator, draw: Draw) -> None:
    """An attempt fails before anybody is opened, or just then, perhaps again; receivers pump in between."""
    for _ in range(draw(st.integers(1, 3), "times")):
        method = draw(st.sampled_from(["staged", "construct", "stage", "open_apply"]), "fails at")
        if fleet.reach(coordinator, lambda effect, method=method: has_call(effect, method)):  # type: ignore[misc]
            call = draw(st.sampled_from(coordinator.pending), "lost")
            coordinator.lose_call(call, executed=draw(st.booleans(), "executed"), crash_at=draw(CRASH_AT))
            pump(fleet, coordinator, draw)
            fleet.tick()


@staged
def die_when_opening(fleet: Fleet, coordinator: Coordinator, draw: Draw) -> None:
    """Some receivers are opened and apply what they hold; then the coordinator dies, or the trainer too."""
    trainer_too = draw(st.booleans(), "trainer too")
    if not fleet.reach(coordinator, lambda effect: has_call(effect, "open_apply")):
        return
    for call in draw(st.lists(st.sampled_from(coordinator.pending), min_size=1, unique_by=id), "opened"):
        fleet.world.deliver(call)
        if call.target in NAMES and not fleet.world.receiver(call.target).gone:
            fleet.world.receiver(call.target).pump()
        fleet.world.check()
    coordinator.dead = True
    if trainer_too:
        fleet.world.restart_trainer(fleet.other_weights(draw))
    fleet.start()


@staged
def change_the_candidate(fleet: Fleet, coordinator: Coordinator, draw: Draw) -> None:
    """Everything is staged when the trainer dies; it comes back with other weights."""
    if fleet.reach(coordinator, lambda effect: has_call(effect, "staged")):
        for call in coordinator.pending:
            fleet.world.deliver(call)
        fleet.world.restart_trainer(fleet.flipped(draw(FLIPS)))


@staged
def crowd_a_receiver(fleet: Fleet, coordinator: Coordinator, draw: Draw) -> None:
    """For a while there is no room for payloads on a receiver's host."""
    _crowd(fleet, coordinator, draw, on_disk=False)


@free
def spill(fleet: Fleet, coordinator: Coordinator, draw: Draw) -> None:
    """For a while there is room for payloads on a receiver's disk only."""
    _crowd(fleet, coordinator, draw, on_disk=True)


STAGED.add(spill.__name__)


def _crowd(fleet: Fleet, coordinator: Coordinator, draw: Draw, *, on_disk: bool) -> None:
    receiver, steps = fleet.world.receivers[draw(RECEIVER)], draw(DURATION, "steps")
    if fleet.reach(coordinator, lambda effect: has_call(effect, "stage")) and not receiver.gone:
        receiver.crowd(on_disk=on_disk, steps=steps)


# ---- disks ----


@fault
def fill_store(fleet: Fleet, coordinator: Coordinator, draw: Draw) -> None:
    """The object store takes a few more objects of this attempt, then none for a while."""
    lists, steps = draw(st.booleans(), "when the lists are stored"), draw(DURATION, "steps")
    room = draw(st.sampled_from([1, 0] if lists else [1, 0, 2, 3, 4]), "room")
    wanted = is_store if lists else lambda effect: has_call(effect, "construct")
    if fleet.reach(coordinator, wanted):
        fleet.world.store.room, fleet.world.full_for = room, steps


@fault
def fill_tracker_disk(fleet: Fleet, coordinator: Coordinator, draw: Draw) -> None:
    """An owner's own disk is full for a while."""
    rank, steps = draw(RANK), draw(DURATION, "steps")
    if fleet.reach(coordinator, lambda effect: has_call(effect, "fold_in")):
        TRACKER_DISKS.full.add(fleet.world.owners[rank].folder)
        fleet.world.full_for = steps


# ---- processes ----


@fault
def crash_receiver(fleet: Fleet, coordinator: Coordinator, draw: Draw) -> None:
    receiver = fleet.world.receivers[draw(RECEIVER)]
    if not receiver.gone:
        receiver.start()


@fault
def cut_off(fleet: Fleet, coordinator: Coordinator, draw: Draw) -> None:
    """Nothing reaches a receiver for a while, or it does not run at all; requests came to it before.

    Perhaps until the others have gone on without it.
    """
    receiver, steps = fleet.world.receivers[draw(RECEIVER)], draw(st.integers(5, 120), "steps")
    frozen, left_behind = draw(st.booleans(), "frozen"), draw(st.booleans(), "left behind")
    if receiver.gone:
        return
    for duration in (3, 40, 400):
        receiver.serving.enter(duration)
    receiver.cut_off, receiver.frozen = 1000 if left_behind else steps, frozen
    if left_behind:
        version = fleet.world.state.record.version
        fleet.reach(coordinator, lambda effect: fleet.world.state.record.version > version, MAX_DRAIN_STEPS)
        receiver.cut_off = draw(st.integers(0, 20), "steps")


@fault
def crash_owner(fleet: Fleet, coordinator: Coordinator, draw: Draw) -> None:
    """It comes back with the same step's weights, as they were or, with flips, others."""
    if draw(st.booleans(), "between prepare and fence"):
        fleet.reach(coordinator, lambda effect: has_call(effect, "fence"))
    fleet.world.restart_owner(draw(RANK, "rank"), fleet.other_weights(draw))


@fault
def crash_trainer(fleet: Fleet, coordinator: Coordinator, draw: Draw) -> None:
    fleet.world.restart_trainer(fleet.other_weights(draw))


@fault
def crash_coordinator(fleet: Fleet, coordinator: Coordinator, draw: Draw) -> None:
    """Its calls may still arrive; another one takes over."""
    for call in coordinator.pending if draw(st.booleans(), "late") else ():
        fleet.world.late.append(Late(call, *draw(LATE)))
    coordinator.dead = True
    fleet.start()


@fault
def crash_node(fleet: Fleet, coordinator: Coordinator, draw: Draw) -> None:
    """Coordinator and trainer die when an attempt is published; its opening is still under way."""
    if fleet.reach(coordinator, lambda effect: has_call(effect, "open_apply")):
        for call in coordinator.pending:
            if call.method == "open_apply":
                fleet.world.late.append(Late(call, *draw(LATE)))
            else:
                fleet.world.deliver(call)
        coordinator.dead = True
        fleet.world.restart_trainer(fleet.other_weights(draw))
        fleet.start()


@fault
def second_coordinator(fleet: Fleet, coordinator: Coordinator, draw: Draw) -> None:
    """It takes over from one that lives and knows nothing of it."""
    if len(fleet.alive()) < 2:
        fleet.start()
