"""Names of everything in a run folder."""

from dataclasses import dataclass
from pathlib import Path

LATEST = Path("runs/latest")
"""The run that was started last in this folder's ``runs``."""


def coordinator_name(index: int) -> str:
    """Under which a coordinator logs and is killed in tests; the active one is found as ``coordinator``."""
    return f"coordinator-{index}" if index else "coordinator"


@dataclass(frozen=True, slots=True)
class RunFolder:
    """The folder of one run; nothing here creates anything."""

    root: Path

    @property
    def config(self) -> Path:
        """The resolved configuration (YAML)."""
        return self.root / "config.yaml"

    @property
    def run_id(self) -> Path:
        """32 hexadecimal digits under which every object of the run lives (P1)."""
        return self.root / "run_id"

    @property
    def lock(self) -> Path:
        """Held (flock) by the driver and every process that it started."""
        return self.root / "lock"

    @property
    def endpoints(self) -> Path:
        """One ``<name>.json`` per process: where it listens now."""
        return self.root / "endpoints"

    @property
    def rendezvous(self) -> Path:
        """Files through which the trainer ranks of one start find one another."""
        return self.root / "rendezvous"

    @property
    def logs(self) -> Path:
        """One ``<name>.log`` per process."""
        return self.root / "logs"

    def log(self, name: str) -> Path:
        """Output of process ``name`` over all its incarnations."""
        return self.logs / f"{name}.log"

    @property
    def store(self) -> Path:
        """Directory object store, unless transport.path names another: payloads, manifests, audit tables."""
        return self.root / "store"

    @property
    def s3(self) -> Path:
        """The run's own S3 server: data, configuration, log; only with transport=s3 and no bucket."""
        return self.root / "s3"

    @property
    def control(self) -> Path:
        """SQLite file that holds the commit record."""
        return self.root / "control.sqlite"

    @property
    def checkpoints(self) -> Path:
        """Training checkpoints, one folder per version."""
        return self.root / "checkpoints"

    @property
    def trackers(self) -> Path:
        """Persistent source baselines, one folder per trainer rank."""
        return self.root / "trackers"

    @property
    def dense(self) -> Path:
        """Gathered candidates (safetensors) for dense refits and verification."""
        return self.root / "dense"

    @property
    def verify(self) -> Path:
        """Raw storage of every instance after the last refit."""
        return self.root / "verify"

    @property
    def exchange(self) -> Path:
        """What goes between an engine's front and its workers: versions, payloads, answers."""
        return self.root / "exchange"

    @property
    def served(self) -> Path:
        """Model configurations that a run made for its engines."""
        return self.root / "served"

    @property
    def receivers(self) -> Path:
        """One ``<name>.json`` per instance: how it takes each tensor, and its background audit."""
        return self.root / "receivers"

    @property
    def faults(self) -> Path:
        """One empty file per injected fault that has fired."""
        return self.root / "faults"

    @property
    def metrics(self) -> Path:
        """One flat JSON object per step."""
        return self.root / "metrics.jsonl"

    @property
    def change_rates(self) -> Path:
        """One JSON object per step: changed elements of every tensor."""
        return self.root / "change_rates.jsonl"

    @property
    def traffic(self) -> Path:
        """One ``<process>-<incarnation>.json`` per start: payload bytes that it stored and fetched."""
        return self.root / "traffic"

    @property
    def trace(self) -> Path:
        """One ``<process>-<incarnation>.jsonl`` per process and start: its stages."""
        return self.root / "trace"

    @property
    def trace_json(self) -> Path:
        """The stages of all processes as a Chrome trace, for Perfetto."""
        return self.root / "trace.json"

    @property
    def phases(self) -> Path:
        """One ``<name>.json`` per process: what it is doing now."""
        return self.root / "phases"

    @property
    def plots(self) -> Path:
        """Pictures (PNG)."""
        return self.root / "plots"

    @property
    def summary(self) -> Path:
        """Figures of the whole run, written when it is complete."""
        return self.root / "summary.json"
