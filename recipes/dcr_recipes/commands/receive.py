"""``dcr receive``: the receiver of an inference server that somebody else started."""

import argparse
import os
import signal
import threading
from typing import TYPE_CHECKING

from dcr.errors import ConfigError
from dcr_recipes.commands.arguments import add_run

if TYPE_CHECKING:
    from dcr.receiver.workers.control import EngineControl

KEY = "DCR_SERVER_KEY"


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "receive",
        help="join a live run with an inference server that somebody else started",
        description="Be the receiver of a server: it is restored to the committed version, proven, and takes"
        " part in every refit, until a signal ends this command; the run then goes on without it, and it"
        " answers no more. One receiver a server. docs/servers.md says how the server is started.",
        epilog="example: DCR_SERVER_KEY=secret dcr receive runs/latest --engine sglang"
        " --url http://127.0.0.1:30000",
    )
    add_run(parser)
    parser.add_argument("--engine", choices=("sglang", "vllm"), required=True, help="what the server is")
    parser.add_argument("--url", required=True, metavar="URL", help="where it listens")
    parser.add_argument(
        "--name", default="server-0", help="its own among the run's instances; default server-0"
    )
    parser.add_argument(
        "--key-variable", default=KEY, metavar="VARIABLE",
        help=f"environment variable with the server's (admin) API key, if it has one; default {KEY}",
    )  # fmt: skip
    parser.set_defaults(command=run)


def run(args: argparse.Namespace) -> int:
    """Take part until a signal ends it.

    Raises:
        ConfigError: no run, a name that the run's own instances have, or a server that takes no deltas.
        Unreachable: the server or the run does not answer.
    """
    from dcr_recipes.commands.opened import open_run
    from dcr_recipes.processes.joined_server import take_part
    from dcr_recipes.processes.serving import runtime_names

    opened = open_run(args.run)
    if args.name in runtime_names(opened.config):
        raise ConfigError(f"--name {args.name}: an instance of the run itself is called so; choose another")
    control = _control(args.engine, args.url, os.environ.get(args.key_variable, ""))
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _signal, _frame: stop.set())
    take_part(opened.folder, opened.config, args.name, control, stop)
    return 0


def _control(engine: str, url: str, key: str) -> "EngineControl":
    if engine == "vllm":
        from dcr_adapters.vllm import http_control as vllm

        return vllm.HttpControl(url, token=key)
    from dcr_adapters.sglang import http_control as sglang

    return sglang.HttpControl(url, token=key)
