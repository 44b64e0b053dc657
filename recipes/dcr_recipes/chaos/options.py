"""What a chaos run is told, and the configuration of the run under it."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dcr_recipes.chaos.schedule import Pace

RUNTIMES = 3
COORDINATORS = 2
_STEPS = 1_000_000
"""More than any chaos run takes: it ends by time."""
_CUT_S = 1.0


@dataclass(frozen=True, slots=True)
class Options:
    """``words`` are keys of ``dcr grpo``, which the run's own may not undo.

    ``sample`` answers at most are replayed. ``etcd_nodes`` 0: the record is in SQLite. The storm lasts
    ``seconds``, and up to three times that until there were ``least_transitions`` and ``least_kills``.
    """

    seconds: float
    seed: int
    words: Sequence[str] = ()
    pace: Pace = field(default_factory=Pace)
    etcd_nodes: int = 3
    sample: int = 400
    most_open: int = 3
    least_transitions: int = 0
    least_kills: int = 0
    start_s: float = 300.0
    quiet_s: float = 240.0


def run_words(options: Options) -> list[str]:
    """The run: tiny model, three runtimes, everything verified, deadlines that fit stops of seconds."""
    root = Path("runs") / f"chaos-{options.seed}-{time.strftime('%Y%m%d-%H%M%S')}"
    own = [
        "model=tiny",
        f"seed={options.seed}",
        f"steps={_STEPS}",
        f"runtime.instances={RUNTIMES}",
        f"commit.coordinators={COORDINATORS}",
        "commit.leader_lease_s=3",
        "runtime.patience_s=240",
        "runtime.request_deadline_s=15",
        "verify=full",
        "trace=false",
        "commit.fence_deadline_s=15",
        "commit.construct_deadline_s=30",
        "commit.finish_deadline_s=30",
        "commit.max_attempts=1000",
        "commit.lease_s=3",
        "commit.lease_skew_s=0.5",
        "commit.evict_after_s=4",
        "faults.max_restarts=1000000",
        f"faults.cut_connections_s={_CUT_S}",
    ]
    named = any(word.startswith("run_dir=") for word in options.words)
    return [*own, *([] if named else [f"run_dir={root}"]), *options.words]
