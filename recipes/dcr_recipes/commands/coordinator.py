"""``dcr coordinator``: one of a run's coordinators as a process, for runs of one's own loop."""

import argparse
import os
import re
import signal
import socket
import threading
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

from dcr.errors import ConfigError

if TYPE_CHECKING:
    from dcr.config import CommitConfig
    from dcr.refit import Post
    from dcr.transport.base import ObjectStore

_RUN_ID = re.compile(r"[0-9a-f]{32}")
_EXPLICIT = ("run", "store", "endpoints", "control", "world")
"""What must be given where there is no run folder."""


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "coordinator",
        help="be one of a run's coordinators, active or standing by",
        usage="dcr coordinator RUN_DIR [options]\n       dcr coordinator --run ID --store STORE"
        " --endpoints DIR --control PLANE --world N --receivers NAME,... [options]",
        description="Coordinate a run: of a run folder of `dcr grpo`, or of a training loop of your own that"
        " uses dcr.Refit. Start as many as you like: one leads, the others stand by and take over when it"
        " dies, hangs or is cut off. Whoever leads is named in the endpoints folder as 'coordinator'. One"
        " line is printed at each change of role. Ctrl-C and SIGTERM hand over at once.",
        epilog="example: dcr coordinator --run $(openssl rand -hex 16) --store /mnt/dcr/store --endpoints"
        " /mnt/dcr/endpoints --control etcd:http://a:2379,http://b:2379,http://c:2379 --world 8"
        " --receivers east-0,east-1",
    )
    parser.add_argument("run_dir", nargs="?", type=Path, metavar="RUN_DIR", help="a run folder")
    own = parser.add_argument_group("a run of one's own loop")
    own.add_argument(
        "--run", metavar="ID", help="run id, 32 hexadecimal digits; the same for all its processes"
    )
    own.add_argument("--store", help="the object store: a folder, or s3://BUCKET/PREFIX")
    own.add_argument(
        "--endpoints", type=Path, metavar="DIR", help="folder where the processes find one another"
    )
    own.add_argument("--control", metavar="PLANE", help="sqlite:PATH, etcd:URL,URL,... or s3:BUCKET/PREFIX")
    own.add_argument("--world", type=int, metavar="N", help="trainer ranks")
    own.add_argument("--receivers", default="", metavar="A,B", help="members of a new run; others join later")
    own.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="a deadline, as finish_deadline_s=60"
    )
    parser.add_argument("--lease", type=float, metavar="S", help="silent for so long: replaced; default 5")
    parser.add_argument("--name", help="its own among all coordinators; default HOST-PID")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on; default 127.0.0.1")
    parser.set_defaults(command=run)


def run(args: argparse.Namespace) -> int:
    """Coordinate until a signal ends it.

    Raises:
        ConfigError: the arguments do not name a run, or what they name cannot be used: its server ignores
            conditional writes, for example.
        StoreError: the store or the control plane does not answer, or is no such thing.
    """
    from dcr.refit import coordinate

    post = _post(args)
    _require_usable(post)
    if args.lease is not None:
        post = replace(post, leader_lease_s=_lease(args.lease))
    name = args.name or f"{socket.gethostname()}-{os.getpid()}"
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _signal, _frame: stop.set())
    coordinate(name, post, stop, tell=lambda line: print(line, flush=True), host=args.host)
    return 0


def _require_usable(post: "Post") -> None:
    """What cannot be reached or relied on from the start is a mistake; later it is waited for."""
    from dcr.errors import MissingObject
    from dcr.transport.base import Probed

    plane = post.control.plane()
    for part in (post.site.store, plane):
        if isinstance(part, Probed):
            part.check()
    try:
        plane.read(post.site.run)
    except MissingObject:
        return


def _post(args: argparse.Namespace) -> "Post":
    given = [f"--{key}" for key in (*_EXPLICIT, "receivers", "set") if getattr(args, key)]
    if args.run_dir is None:
        return _of_arguments(args)
    if given:
        raise ConfigError(f"RUN_DIR says it all: drop {', '.join(given)}, or RUN_DIR")
    return _of_folder(args.run_dir)


def _of_folder(root: Path) -> "Post":
    from dcr_recipes.compose import load
    from dcr_recipes.layout import RunFolder
    from dcr_recipes.processes.serving import post_of

    folder = RunFolder(root.resolve())
    if not folder.config.is_file():
        raise ConfigError(f"{root} holds no run; name a run folder, for example runs/latest")
    config = load(folder.config)
    if config.refit != "dcr":
        raise ConfigError(f"{root} runs with refit={config.refit}: only refit=dcr has a coordinator")
    return post_of(folder, config)


def _of_arguments(args: argparse.Namespace) -> "Post":
    from dcr.config import CommitConfig
    from dcr.refit import Post, Site, parse_control

    missing = [f"--{key}" for key in _EXPLICIT if getattr(args, key) in (None, "")]
    if missing:
        raise ConfigError(f"name a RUN_DIR, or give {', '.join(missing)} as well")
    if not _RUN_ID.fullmatch(args.run):
        raise ConfigError(
            f"--run: {args.run!r} is not 32 hexadecimal digits; take one of: openssl rand -hex 16"
        )
    if args.world < 1:
        raise ConfigError(f"--world: must be at least 1, got {args.world}")
    control = parse_control(args.control)
    site = Site(args.run, _store(args.store), args.endpoints)
    receivers = tuple(name.strip() for name in args.receivers.split(",") if name.strip())
    return Post(_commit(CommitConfig(), args.set), site, control, args.world, receivers, 5.0)


def _store(text: str) -> "ObjectStore":
    """A folder, made if need be, or a bucket: the SDK's own settings say where that is."""
    if text.startswith("s3://"):
        from dcr.transport.s3 import S3Store
        from dcr.transport.s3_client import S3Address

        bucket, _, prefix = text.removeprefix("s3://").partition("/")
        if not bucket:
            raise ConfigError(f"--store: {text!r} names no bucket; give s3://BUCKET or s3://BUCKET/PREFIX")
        return S3Store(S3Address(bucket, prefix=prefix.strip("/")))
    from dcr.transport.directory import DirectoryStore

    folder = Path(text)
    folder.mkdir(parents=True, exist_ok=True)
    return DirectoryStore(folder)


def _lease(seconds: float) -> float:
    if not 1.0 <= seconds < float("inf"):
        raise ConfigError(f"--lease: must be at least 1 second, got {seconds:g}")
    return seconds


def _commit(config: "CommitConfig", words: list[str]) -> "CommitConfig":
    """``config`` with the values of ``key=value`` words."""
    known = {field.name: type(getattr(config, field.name)) for field in fields(config)}
    for word in words:
        key, _, text = word.partition("=")
        if key not in known:
            raise ConfigError(f"--set: unknown key {key!r}; known: {', '.join(known)}")
        try:
            value = known[key](text)
        except ValueError as err:
            raise ConfigError(f"--set: {key} must be a number, got {text!r}") from err
        if not 0 <= value < float("inf"):
            raise ConfigError(f"--set: {key} must be at least 0, got {text}")
        config = replace(config, **{key: value})
    return config
