"""Leadership in etcd v3: a key bound to a lease that the active one keeps alive.

When it stops doing so, dead or stopped or cut off, etcd lets the lease run out and deletes the key.
"""

import base64
import math
from collections.abc import Sequence
from dataclasses import dataclass

from dcr.commit.control_plane.gateway import Answer, EtcdGateway, text
from dcr.errors import OutcomeUnknown, StoreError
from dcr.model import RunId

_NOBODY = ""


@dataclass(frozen=True, slots=True)
class _Held:
    """Who holds the key, and under which lease."""

    name: str
    lease: str


class EtcdLeadership:
    """``Leadership`` of ``run`` for the candidate ``name``, at ``<prefix>/leader/<run>``.

    etcd counts leases in whole seconds, and its shortest is about 1.5 election time-outs (2 s by
    default), so ``lease_s`` is rounded up. A lost answer is a StoreError: the next call finds out.

    Raises:
        ConfigError: no endpoint, or one that is no http(s) URL.
    """

    def __init__(
        self, endpoints: Sequence[str], run: RunId, name: str, *, lease_s: float, prefix: str = "/dcr"
    ) -> None:
        self._etcd = EtcdGateway(endpoints, timeout_s=max(lease_s / 3, 0.5))
        self._key = text(f"{prefix.rstrip('/')}/leader/{run}".encode())
        self._name = name
        self._ttl_s = max(1, math.ceil(lease_s))
        self._lease = ""

    def campaign(self) -> bool:
        """See ``Leadership.campaign``."""
        held = self._held()
        if held is None:
            return self._take({"target": "CREATE", "result": "EQUAL", "create_revision": "0"})
        if held.name != self._name:
            return False
        if held.lease == self._lease and self._keep_alive():
            return True
        return self._take({"target": "VALUE", "result": "EQUAL", "value": text(self._name.encode())})

    def resign(self) -> None:
        """See ``Leadership.resign``."""
        held = self._held()
        if held is not None and held.name == self._name:
            self._write("/v3/lease/revoke", {"ID": held.lease})
        self._lease = ""

    def holder(self) -> str:
        """See ``Leadership.holder``."""
        held = self._held()
        return _NOBODY if held is None else held.name

    def _held(self) -> _Held | None:
        found = self._etcd.read("/v3/kv/range", {"key": self._key}).get("kvs", [])
        if not found:
            return None
        return _Held(base64.b64decode(found[0].get("value", "")).decode(), str(found[0].get("lease", "")))

    def _take(self, condition: dict[str, str]) -> bool:
        """Put the key under a lease of our own, if ``condition`` still holds."""
        lease = str(self._write("/v3/lease/grant", {"TTL": self._ttl_s})["ID"])
        put = {"key": self._key, "value": text(self._name.encode()), "lease": lease}
        body = {
            "compare": [{"key": self._key, **condition}],
            "success": [{"requestPut": put}],
            "failure": [],
        }
        taken = bool(self._write("/v3/kv/txn", body).get("succeeded", False))
        self._lease = lease if taken else ""
        return taken

    def _keep_alive(self) -> bool:
        """Renew the lease; whether there was one left to renew."""
        answer = self._etcd.read("/v3/lease/keepalive", {"ID": self._lease})
        return int(answer.get("result", {}).get("TTL", 0)) > 0

    def _write(self, path: str, body: Answer) -> Answer:
        try:
            return self._etcd.write(path, body)
        except OutcomeUnknown as err:
            raise StoreError(f"leadership: {err}") from err
