from dcr.errors import StoreError
from dcr.model import AttemptId, CommitRecord, ControlState
from dcr_recipes.members import ReadMembers

RUN = "ab" * 16


def test_members_are_what_the_control_plane_says() -> None:
    record = CommitRecord(RUN, 0, AttemptId(0, 0), 1, "w", None, 0, "c", "m", "a")
    state = ControlState(RUN, 0, "w", 1, 0, record, members=("runtime-1",))
    assert ReadMembers(lambda: state, ("runtime-0", "runtime-1"))() == ("runtime-1",)


def test_while_it_is_away_everybody_is_waited_for() -> None:
    def away() -> ControlState:
        raise StoreError("no etcd node answers")

    assert ReadMembers(away, ("runtime-0", "runtime-1"))() == ("runtime-0", "runtime-1")
