"""``dcr receive`` with an SGLang server."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.lanes.sglang.servers import KEY, TAKES_DELTAS, asked, served
from tests.lanes.shared.receive import check_receive


@contextmanager
def serve(model: Path) -> Iterator[str]:
    with served(model, 1, *TAKES_DELTAS, leased=True) as server:
        yield server.url


def test_a_server_joins_a_live_run_and_leaves(tmp_path: Path) -> None:
    check_receive(tmp_path, "sglang", KEY, serve, lambda url: asked(url, [3, 4, 5]).status_code)
