from dcr.errors import StoreError
from dcr.model import AttemptId, CommitRecord, ControlState
from dcr_recipes.members import ReadMembers, Silence

RUN = "ab" * 16


def test_members_are_what_the_control_plane_says() -> None:
    record = CommitRecord(RUN, 0, AttemptId(0, 0), 1, "w", None, 0, "c", "m", "a")
    state = ControlState(RUN, 0, "w", 1, 0, record, members=("runtime-1",))
    assert ReadMembers(lambda: state, ("runtime-0", "runtime-1"))() == ("runtime-1",)


def test_while_it_is_away_everybody_is_waited_for() -> None:
    def away() -> ControlState:
        raise StoreError("no etcd node answers")

    assert ReadMembers(away, ("runtime-0", "runtime-1"))() == ("runtime-0", "runtime-1")


def test_silence_counts_from_the_first_question_in_a_row() -> None:
    silence = Silence(5.0)
    assert not silence.is_too_long(asked_at=1.0, now=3.0)
    assert silence.is_too_long(asked_at=3.0, now=6.0)
    silence.answered()
    assert not silence.is_too_long(asked_at=6.0, now=7.0)
    assert silence.is_too_long(asked_at=10.0, now=11.0)
    assert not Silence(None).is_too_long(asked_at=0.0, now=1e9)
