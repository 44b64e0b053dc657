"""Control plane in etcd v3, through its JSON gateway (DESIGN R16, P4).

One key a run holds the canonical JSON of its ControlState. Values never repeat (revision and
writer), so a transaction that compares the whole value is the compare-and-set; no revision of
etcd's own has to be carried along. Reads are linearizable.
"""

import base64
from collections.abc import Sequence

from dcr.commit.control_plane.base import parse_state, require_same_run
from dcr.commit.control_plane.gateway import EtcdGateway, text
from dcr.errors import Conflict, MissingObject
from dcr.model import ControlState, RunId, to_json


class EtcdControlPlane:
    """``ControlPlane`` under ``<prefix>/control/<run>`` of a cluster with the given client URLs.

    A node that cannot be reached is passed over; a write whose answer is lost is OutcomeUnknown,
    because etcd may still carry it out. One object may be used from any thread or process.

    Raises:
        ConfigError: no endpoint, or one that is no http(s) URL.
    """

    def __init__(self, endpoints: Sequence[str], *, prefix: str = "/dcr", timeout_s: float = 5.0) -> None:
        self._etcd = EtcdGateway(endpoints, timeout_s=timeout_s)
        self._prefix = prefix.rstrip("/")

    def create(self, state: ControlState) -> None:
        """Create the run's value durably; raises Conflict if it exists."""
        absent = {"target": "CREATE", "result": "EQUAL", "create_revision": "0"}
        if not self._swap(state.run, absent, state):
            raise Conflict(f"run {state.run} exists already in etcd at {self._etcd.where}")

    def read(self, run: RunId) -> ControlState:
        """Return the value as a majority holds it; raises MissingObject without one."""
        found = self._etcd.read("/v3/kv/range", {"key": self._key(run)}).get("kvs", [])
        if not found:
            raise MissingObject(f"no run {run} in etcd at {self._etcd.where}")
        return parse_state(run, base64.b64decode(found[0].get("value", "")), f"etcd at {self._etcd.where}")

    def compare_and_set(self, expected: ControlState, state: ControlState) -> None:
        """Replace ``expected`` by ``state`` durably; raises Conflict if the value is another."""
        require_same_run(expected, state)
        unchanged = {"target": "VALUE", "result": "EQUAL", "value": text(to_json(expected))}
        if not self._swap(expected.run, unchanged, state):
            raise Conflict(f"run {expected.run}: the value is no longer revision {expected.revision}")

    def _swap(self, run: RunId, condition: dict[str, str], state: ControlState) -> bool:
        """One transaction; whether its condition held. The gateway leaves ``succeeded`` out when false."""
        key = self._key(run)
        body = {
            "compare": [{"key": key, **condition}],
            "success": [{"requestPut": {"key": key, "value": text(to_json(state))}}],
            "failure": [],
        }
        return bool(self._etcd.write("/v3/kv/txn", body).get("succeeded", False))

    def _key(self, run: RunId) -> str:
        return text(f"{self._prefix}/control/{run}".encode())
