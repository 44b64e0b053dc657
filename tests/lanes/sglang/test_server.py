"""An SGLang server that the test's run did not start: refits over its routes (DESIGN R19, R15)."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
from tests.lanes.sglang.servers import TAKES_DELTAS, HttpServed, served
from tests.lanes.shared import checkpoints
from tests.lanes.shared.engine import PROMPTS, Further, check_engine
from tests.lanes.shared.run import Run
from tests.lanes.shared.servers import until

from dcr.errors import ConfigError
from dcr.receiver.agent import ReceiverAgent
from dcr.receiver.lease import Lease
from dcr.receiver.workers.gate import EngineGate
from dcr.receiver.workers.ranks import Workers
from dcr_adapters.sglang.http_control import HttpControl
from dcr_adapters.sglang.messages import LOADER


@pytest.mark.parametrize("tp", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_refits_of_a_running_server(tp: int, tmp_path: Path) -> None:
    old = checkpoints.make(tmp_path, "llama")

    def serve(model: Path, tp: int) -> AbstractContextManager[HttpServed]:
        return under_lease(model, tp) if model == old else stock(model, tp)

    further = Further(without_renewal, HttpServed.checksums)
    check_engine(serve, old, tmp_path, tp=tp, num_refits=2, further=further)


@contextmanager
def under_lease(model: Path, tp: int) -> Iterator[HttpServed]:
    with served(model, tp, *TAKES_DELTAS, leased=True) as server:
        assert server.asked(PROMPTS[0]).status_code == 503, "nobody has granted a lease yet"
        stranger = HttpControl(server.url, token="wrong")
        with pytest.raises(ConfigError, match="refuses the key"):
            Workers(stranger)
        with pytest.raises(ConfigError, match="refuses the key"):
            stranger.lend(lambda: 10.0)
        stranger.close()
        lease = Lease()
        lease.extend(lease.clock() + 3600)
        server.gate.serve_under(lease)
        yield server
        lease.end()
        until(lambda: server.asked(PROMPTS[0]).status_code == 503)


@contextmanager
def stock(model: Path, tp: int) -> Iterator[HttpServed]:
    """A server that nobody started for DCR: what it says is the oracle, and it takes no deltas."""
    with served(model, tp) as server:
        with pytest.raises(ConfigError, match=f"start the server with --custom-weight-loader {LOADER}"):
            Workers(server.control)
        with pytest.raises(ConfigError, match="DCR_SGLANG_SERVING_LEASE=1"):
            server.gate.serve_under(Lease())
        yield server


def without_renewal(server: HttpServed, _: Run, __: ReceiverAgent) -> None:
    """Whoever renewed the lease is gone: the server stops by itself when the rest of it is over."""
    server.control.lend(lambda: 1.0)
    assert server.asked(PROMPTS[0]).is_success
    until(lambda: server.asked(PROMPTS[0]).status_code == 503)
    server.control.lend(lambda: 3600.0)
    assert server.asked(PROMPTS[0]).is_success


def test_other_servers_are_told_what_is_missing() -> None:
    from dcr.transport.rpc import serve

    with serve({}) as running:
        control = HttpControl(running.url)
        with pytest.raises(ConfigError, match=f"--custom-weight-loader {LOADER}"):
            control.pause()
        with pytest.raises(ConfigError, match="DCR_SGLANG_SERVING_LEASE=1"):
            EngineGate(control).serve_under(Lease())
        control.close()
