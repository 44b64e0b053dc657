"""The control plane by conditional writes on a real S3 server: the common contract, and lost answers."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from tests.lanes.services.writers import Writers

from dcr.commit.control_plane.s3 import S3ControlPlane
from dcr.commit.transitions import take_over
from dcr.errors import ConfigError, Conflict, OutcomeUnknown, StoreError
from dcr.model import new_nonce
from dcr.testing.claims import resolve
from dcr.testing.control_plane_suite import (
    RUN,
    OpenPlane,
    SharedControlPlaneContract,
    first_state,
)
from dcr.testing.s3_faults import Fault, FaultyProxy
from dcr.testing.s3_server import S3Server
from dcr.transport.s3_client import S3Address
from dcr_recipes.cli import main

_WRITERS, _CLAIMS = 4, 40


class TestContract(SharedControlPlaneContract):
    @pytest.fixture
    def open_plane(self, address: S3Address) -> OpenPlane:
        return partial(S3ControlPlane, address)


@pytest.fixture
def plane(through: S3Address, monkeypatch: pytest.MonkeyPatch) -> S3ControlPlane:
    monkeypatch.setattr("dcr.commit.control_plane.s3._PAUSES_S", (0.0, 0.1))
    return S3ControlPlane(through, timeout_s=0.5)


@pytest.mark.parametrize(
    "fault", [Fault("lose", "PUT"), Fault("refuse", "PUT"), Fault("delay", "PUT", value=1.0)]
)
def test_one_lost_answer_is_made_good(plane: S3ControlPlane, proxy: FaultyProxy, fault: Fault) -> None:
    state = first_state()
    proxy.add(fault)
    plane.create(state)
    wanted = take_over(state, new_nonce())
    proxy.add(fault)
    plane.compare_and_set(state, wanted)
    assert plane.read(RUN) == wanted


def test_answers_that_stay_away_are_an_unknown_outcome(plane: S3ControlPlane, proxy: FaultyProxy) -> None:
    """Each landed or not: only who reads later knows."""
    state = first_state()
    plane.create(state)
    wanted = take_over(state, new_nonce())
    proxy.add(Fault("drop", "PUT", count=3))
    with pytest.raises(OutcomeUnknown):
        plane.compare_and_set(state, wanted)
    assert plane.read(RUN) == state
    assert not resolve(plane, wanted)
    with pytest.raises(Conflict):
        plane.compare_and_set(state, wanted)


def test_a_lost_answer_and_then_another_writer_is_an_unknown_outcome(
    plane: S3ControlPlane, proxy: FaultyProxy, address: S3Address
) -> None:
    """Ours landed and was replaced: to call it refused would be wrong."""
    state = first_state()
    plane.create(state)
    ours = take_over(state, new_nonce())
    other = S3ControlPlane(address)
    plane._sleep = lambda _: other.compare_and_set(ours, take_over(ours, new_nonce()))
    proxy.add(Fault("lose", "PUT"))
    with pytest.raises(OutcomeUnknown, match="other writers have gone on"):
        plane.compare_and_set(state, ours)


def test_a_lost_answer_and_another_writer_in_our_place_is_a_conflict(
    plane: S3ControlPlane, proxy: FaultyProxy, address: S3Address
) -> None:
    state = first_state()
    plane.create(state)
    other = S3ControlPlane(address)
    plane._sleep = lambda _: other.compare_and_set(state, take_over(state, new_nonce()))
    proxy.add(Fault("drop", "PUT"))
    with pytest.raises(Conflict):
        plane.compare_and_set(state, take_over(state, new_nonce()))


def test_a_value_that_came_back_to_an_equal_etag_is_still_another(plane: S3ControlPlane) -> None:
    """Equal contents have equal ETags here; no two values are equal, so none comes back."""
    state = first_state()
    plane.create(state)
    once = take_over(state, new_nonce())
    plane.compare_and_set(state, once)
    with pytest.raises(Conflict):
        plane.compare_and_set(state, take_over(state, new_nonce()))


def test_a_server_that_ignores_conditions_is_refused(plane: S3ControlPlane, proxy: FaultyProxy) -> None:
    plane.check()
    proxy.add(Fault("delay", "PUT"), Fault("pretend", "PUT"))
    with pytest.raises(ConfigError, match=r"cannot be a control plane: it ignores If-None-Match"):
        plane.check()


@pytest.mark.parametrize("given", ["control", "store"])
def test_a_coordinator_of_ones_own_loop_looks_first(
    given: str,
    through: S3Address,
    proxy: FaultyProxy,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", through.endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", through.key_id)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", through.secret)
    place = {"control": f"s3:{through.bucket}/own", "store": f"s3://{through.bucket}/own"}[given]
    words = {"run": "0" * 32, "store": str(tmp_path / "store"), "endpoints": str(tmp_path / "endpoints")}
    words |= {"control": f"sqlite:{tmp_path}/control", "world": "1", given: place}
    proxy.add(Fault("delay", "PUT"), Fault("pretend", "PUT"))
    assert main(["coordinator", *(word for key in words for word in (f"--{key}", words[key]))]) == 2
    assert "it ignores If-None-Match" in capsys.readouterr().err


def test_wrong_credentials_are_not_tried_again(
    plane: S3ControlPlane, through: S3Address, proxy: FaultyProxy
) -> None:
    plane.create(first_state())
    num = len(proxy.seen)
    with pytest.raises(StoreError, match="refuses the credentials"):
        S3ControlPlane(replace(through, secret="wrong")).create(first_state())
    assert len(proxy.seen) == num + 1


def test_a_killed_server_loses_and_duplicates_nothing(server: S3Server, address: S3Address) -> None:
    """Four processes, ``kill -9`` in the midst of their commits, a restart."""
    open_plane = partial(S3ControlPlane, address, timeout_s=2.0)
    writers = Writers(open_plane, num_writers=_WRITERS, num_claims=_CLAIMS)
    won = writers.first(5)
    server.kill()
    server.start()
    won += writers.finish()
    assert len(won) == _WRITERS * _CLAIMS
    writers.check(won)
