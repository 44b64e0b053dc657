"""``dcr receive`` with a vLLM server."""

from contextlib import AbstractContextManager
from pathlib import Path

from tests.lanes.shared.receive import check_receive
from tests.lanes.vllm.test_server import asked, server


def test_a_server_joins_a_live_run_and_leaves(tmp_path: Path) -> None:
    def serve(model: Path) -> AbstractContextManager[str]:
        return server(model, tmp_path / "server.log", "--skip-tokenizer-init", "--max-model-len", "256")

    check_receive(tmp_path, "vllm", "", serve, lambda url: asked(url, [3, 4, 5]).status_code)
