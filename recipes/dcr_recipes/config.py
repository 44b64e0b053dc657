"""Everything a run can be told, as dataclasses; YAML under ``dcr_configs`` holds only differences.

Not frozen: OmegaConf merges into them. :mod:`dcr_recipes.compose` is the only place that sees OmegaConf.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

from dcr.config import (
    CHECKS,
    CONTROL_PLANES,
    MODES,
    TRACKERS,
    AuditConfig,
    ChainConfig,
    CodecConfig,
    CommitConfig,
    RefitConfig,
    StagingConfig,
)


@dataclass(slots=True)
class TrainerConfig:
    """The training side: ``ranks`` processes with ``threads`` compute threads each.

    ``ownership`` and ``trackers``: see ``dcr.config.RefitConfig``. ``interpreter`` is the Python of the
    trainer's processes where it is not the driver's (``megatron``: that of its lane). Ranks that
    ``tensor_parallel`` and ``pipeline_parallel`` leave are data parallel.
    """

    name: str = "fsdp"
    ranks: int = 2
    threads: int = 1
    ownership: str = "balanced"
    trackers: str = "mapped"
    interpreter: str = ""
    tensor_parallel: int = 1
    pipeline_parallel: int = 1


@dataclass(slots=True)
class RuntimeConfig:
    """The serving side. ``port`` 0 takes any free port; else instance i listens on ``port + i``.

    ``packed`` maps a resident module name to the canonical ones that it holds, in storage order.
    ``threads`` is part of what decides tokens: kernels sum in another order with other counts.
    ``engines`` are the kinds of ``mixed``, whose instances take turns.
    ``interpreter`` is the Python of the serving processes where it is not the driver's (``vllm``, ``sglang``:
    that of the lane). ``tensor_parallel``, ``kv_cache_mib``, ``context_tokens`` and ``arguments`` are an
    inference engine's; ``arguments`` go to it as they are.
    """

    name: str = "hf"
    instances: int = 2
    threads: int = 1
    port: int = 0
    patience_s: float = 120.0
    request_deadline_s: float = 120.0
    prompt_cache_mib: int = 64
    probe: bool = True
    packed: dict[str, list[str]] = field(default_factory=dict)
    engines: list[str] = field(default_factory=list)
    interpreter: str = ""
    tensor_parallel: int = 1
    kv_cache_mib: int = 64
    context_tokens: int = 512
    arguments: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class TransportConfig:
    """How payloads travel. ``directory`` is a folder that all processes see; by default in the run folder.

    ``s3`` is a bucket; without ``bucket`` and ``endpoint`` the run starts a server of its own in the run
    folder. Runs may share a folder or bucket: everything of a run lies under its own id there (P1).
    ``ahead`` payloads are fetched while a receiver applies one; it looks for new ones
    after ``poll_s``, then after longer and longer pauses, up to 0.25 s.
    """

    name: str = "directory"
    path: str = ""
    bucket: str = ""
    endpoint: str = ""
    region: str = ""
    prefix: str = ""
    path_style: bool = True
    patience_s: float = 60.0
    ahead: int = 0
    poll_s: float = 0.005


@dataclass(slots=True)
class CommitPlaneConfig(CommitConfig):
    """The core's deadlines, the control plane that holds the record, and the coordinators.

    ``endpoints`` are client URLs of an etcd cluster that runs already. An active coordinator that has not
    been heard of for ``leader_lease_s`` is replaced by one that stands by.
    """

    name: str = "sqlite"
    endpoints: list[str] = field(default_factory=list)
    coordinators: int = 1
    leader_lease_s: float = 5.0


@dataclass(slots=True)
class RecipeConfig:
    """GRPO. Sizes are counts; ``prompt_tokens`` is the length of random prompts, others have their own."""

    name: str = "grpo"
    task: str = "chain_sum"
    prompts: int = 4
    group_size: int = 4
    prompt_tokens: int = 8
    response_tokens: int = 16
    temperature: float = 1.0
    clip_low: float = 0.2
    clip_high: float = 0.28
    weight_decay: float = 0.0


@dataclass(slots=True)
class FaultsConfig:
    """Restart policy, and processes that kill themselves at named points (tests only).

    A ``kill`` entry is ``process:point:nth[:incarnation]``; see :mod:`dcr_recipes.faults`.
    ``kill_runtime_every`` and ``restart_after_steps``: see :mod:`dcr_recipes.scheduled_kills`.
    ``cut_connections_s``: see :mod:`dcr_recipes.chaos.cuts`.
    """

    kill: list[str] = field(default_factory=list)
    kill_runtime_every: int = 0
    restart_after_steps: int = 0
    cut_connections_s: float = 0.0
    max_restarts: int = 10


@dataclass(slots=True)
class RunConfig:
    """One run of ``dcr grpo``."""

    model: str = "smollm2"
    steps: int = 20
    refit: str = "dcr"
    seed: int = 0
    lr: float = 3e-6
    run_dir: str = ""
    resume: bool = False
    verify: str = "full"
    check: str = "written"
    trace: bool = True
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    runtime: RuntimeConfig = field(default_factory=RuntimeConfig)
    transport: TransportConfig = field(default_factory=TransportConfig)
    commit: CommitPlaneConfig = field(default_factory=CommitPlaneConfig)
    codec: CodecConfig = field(default_factory=CodecConfig)
    audit: AuditConfig = field(default_factory=AuditConfig)
    staging: StagingConfig = field(default_factory=StagingConfig)
    chain: ChainConfig = field(default_factory=ChainConfig)
    recipe: RecipeConfig = field(default_factory=RecipeConfig)
    faults: FaultsConfig = field(default_factory=FaultsConfig)

    def refit_config(self) -> RefitConfig:
        """What one side of the refit needs of it."""
        return RefitConfig(
            codec=self.codec, commit=self.commit, check=self.check, ownership=self.trainer.ownership,
            trackers=self.trainer.trackers,
            audit=self.audit, staging=self.staging, chain=self.chain,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Rule:
    """What a key accepts beyond its type, and what ``--help`` says about it."""

    help: str
    choices: tuple[str, ...] = ()
    minimum: float | None = None
    below: float | None = None
    fixed: bool = False
    """True: a resumed run must have the value that it was started with."""


GROUPS = ("trainer", "runtime", "transport", "commit", "codec", "recipe")

RULES: Mapping[str, Rule] = {
    "model": Rule("smollm2, tiny (random), or the folder of a Hugging Face checkpoint", fixed=True),
    "steps": Rule("optimizer steps in all", minimum=0),
    "refit": Rule("move changed bits, or every byte", ("dcr", "dense"), fixed=True),
    "seed": Rule("seed of weights, prompts and sampling", minimum=0, below=1 << 63, fixed=True),
    "lr": Rule("learning rate of AdamW", minimum=0.0, fixed=True),
    "run_dir": Rule("folder of the run; default runs/<recipe>-<time>"),
    "resume": Rule("continue the run in run_dir (default: runs/latest)"),
    "verify": Rule(
        "compare bits with a dense refit: all tensors, a tenth, none",
        ("full", "sampled", "off"),
    ),
    "check": Rule("what receivers prove before they acknowledge: written bits, all bits, none", CHECKS),
    "trace": Rule("record every process's stages: trace.json and the seconds by stage"),
    "trainer.name": Rule("training framework; trainer=NAME picks it", ("fsdp", "megatron"), fixed=True),
    "trainer.ranks": Rule("trainer processes", minimum=1, fixed=True),
    "trainer.threads": Rule("compute threads of each", minimum=1, fixed=True),
    "trainer.ownership": Rule(
        "owners of replicated elements: equal shares of bytes, or tensors by name hash",
        ("balanced", "published"),
        fixed=True,
    ),
    "trainer.trackers": Rule(
        "source baselines: files that a restarted trainer proves, or memory, rebuilt from the archive",
        TRACKERS,
    ),
    "trainer.interpreter": Rule(
        "Python of the trainer's processes; default: this one, megatron: .venv-megatron beside it"
    ),
    "trainer.tensor_parallel": Rule("megatron: ranks that share each layer", minimum=1, fixed=True),
    "trainer.pipeline_parallel": Rule("megatron: stages of layers", minimum=1, fixed=True),
    "runtime.name": Rule(
        "serving runtime; runtime=NAME picks it", ("hf", "vllm", "sglang", "mixed"), fixed=True
    ),
    "runtime.instances": Rule("serving processes", minimum=1, fixed=True),
    "runtime.threads": Rule("compute threads of each", minimum=1, fixed=True),
    "runtime.port": Rule("first port to listen on; 0 takes any free one", minimum=0, below=65536),
    "runtime.patience_s": Rule("seconds that a step waits for a process that starts", minimum=0.0),
    "runtime.request_deadline_s": Rule(
        "seconds after which a request goes to another instance", minimum=1e-3
    ),
    "runtime.prompt_cache_mib": Rule(
        "MiB of prompt state that each keeps; 0: none; engines: on or off", minimum=0
    ),
    "runtime.probe": Rule("ask every instance one prompt around each refit and compare the answers"),
    "runtime.packed": Rule("hf: resident module -> canonical modules packed in it", fixed=True),
    "runtime.engines": Rule("mixed: what the instances are in turn, [vllm, sglang]", fixed=True),
    "runtime.interpreter": Rule(
        "Python of serving processes; default: this one, engines: .venv-NAME beside it"
    ),
    "runtime.tensor_parallel": Rule("engines: ranks of each instance", minimum=1, fixed=True),
    "runtime.kv_cache_mib": Rule("engines: MiB of KV cache of each rank", minimum=1, fixed=True),
    "runtime.context_tokens": Rule("engines: longest prompt and response together", minimum=1, fixed=True),
    "runtime.arguments": Rule("engines: further arguments, {name: value, ...}", fixed=True),
    "transport.name": Rule("how payloads travel", ("directory", "s3"), fixed=True),
    "transport.path": Rule("directory: folder of the object store; default RUN_DIR/store", fixed=True),
    "transport.bucket": Rule("s3: bucket, which must exist; default: a server in the run folder", fixed=True),
    "transport.endpoint": Rule("s3: url of the server; default: AWS, as its SDK is configured", fixed=True),
    "transport.region": Rule("s3: region; default: as the SDK is configured"),
    "transport.prefix": Rule("s3: what the names of all objects begin with, without the last /", fixed=True),
    "transport.path_style": Rule("s3: the bucket is part of the path, not of the host's name"),
    "transport.patience_s": Rule("s3: seconds that a server that is away is waited for", minimum=0.0),
    "transport.ahead": Rule("payloads fetched while another one is applied", minimum=0),
    "transport.poll_s": Rule("shortest pause between two looks for new payloads, in seconds", minimum=1e-3),
    "commit.name": Rule(
        "where the commit record lives: a file of the run, an etcd cluster, its bucket",
        CONTROL_PLANES,
        fixed=True,
    ),
    "commit.endpoints": Rule("etcd: client URLs of a cluster that runs, [http://host:2379, ...]"),
    "commit.coordinators": Rule("coordinators; all but one stand by", minimum=1),
    "commit.leader_lease_s": Rule(
        "seconds without a sign of life after which a coordinator is replaced", minimum=1.0
    ),
    "commit.mode": Rule(
        "sync: gates shut at the first attempt; async: when every runtime holds the whole delta", MODES
    ),
    "commit.max_attempts": Rule(
        "attempts at one transition before a dense one; if that fails too, it is abandoned", minimum=1
    ),
    "commit.lease_s": Rule(
        "seconds that a runtime may serve without hearing of the coordinator; 0: for ever, no eviction",
        minimum=0.0,
        fixed=True,
    ),
    "commit.lease_skew_s": Rule(
        "seconds by which two clocks may differ over a lease", minimum=0.0, fixed=True
    ),
    "commit.evict_after_s": Rule(
        "seconds after which a runtime that does not answer is left out; 0: never", minimum=0.0
    ),
    "commit.min_receivers": Rule("runtimes without which nothing is committed", minimum=1),
    "codec.name": Rule("payload coding", ("published", "planes"), fixed=True),
    "codec.zstd_level": Rule("zstd level", minimum=1, below=23),
    "codec.chunk_mib": Rule("MiB of source per chunk", minimum=1),
    "codec.bucket_mib": Rule("MiB of source per payload", minimum=1),
    "codec.threads": Rule("threads that compare and encode; 0: as many as cores, 1: no overlap", minimum=0),
    "codec.queue": Rule("payloads encoded or sent while the next is filled", minimum=1),
    "codec.dense_share": Rule("share of changed elements above which a shard is sent whole", minimum=0),
    "audit.rate_mib_s": Rule(
        "MiB a second of its weights that an instance proves in the background; 0: none", minimum=0
    ),
    "audit.slice_mib": Rule("MiB that it reads at once, while refits wait", minimum=1e-3),
    "chain.catch_up": Rule("a runtime that holds an older version takes one composed delta, no dense load"),
    "chain.catch_up_mib": Rule("MiB of memory for composing", minimum=1e-3),
    "chain.anchor_every": Rule("versions after which all planes are stored anew; 0: never", minimum=0),
    "chain.anchor_share": Rule(
        "share of the checkpoint that deltas may take before planes are stored anew; 0: any", minimum=0
    ),
    "chain.keep_versions": Rule("newest versions that are kept; 0: all", minimum=0),
    "staging.memory_mib": Rule("async: MiB of payloads that a runtime holds in memory", minimum=0),
    "staging.disk_mib": Rule("async: MiB that it holds on disk beyond that", minimum=0),
    "staging.path": Rule("async: folder for these; default RUN_DIR/staging"),
    "recipe.name": Rule("training recipe", ("grpo",), fixed=True),
    "recipe.task": Rule("where prompts and rewards come from", ("chain_sum", "random_tokens"), fixed=True),
    "recipe.prompts": Rule("prompt groups per step", minimum=1, fixed=True),
    "recipe.group_size": Rule("responses per prompt", minimum=2, fixed=True),
    "recipe.prompt_tokens": Rule("tokens of a random prompt", minimum=1, fixed=True),
    "recipe.response_tokens": Rule("tokens of a response", minimum=1, fixed=True),
    "recipe.temperature": Rule("sampling temperature", minimum=1e-3, fixed=True),
    "recipe.clip_low": Rule("lower clip of the ratio", minimum=0.0, fixed=True),
    "recipe.clip_high": Rule("upper clip of the ratio", minimum=0.0, fixed=True),
    "recipe.weight_decay": Rule("weight decay of AdamW", minimum=0.0, fixed=True),
    "faults.kill": Rule("tests: process:point:nth[:incarnation], ..."),
    "faults.kill_runtime_every": Rule("kill a runtime in the midst of every n-th refit; 0: never", minimum=0),
    "faults.restart_after_steps": Rule("steps that a runtime killed by that stays away", minimum=0),
    "faults.cut_connections_s": Rule(
        "tests: seconds that SIGUSR1 cuts connections; 0: it does not", minimum=0
    ),
    "faults.max_restarts": Rule("restarts of dead processes before the run fails", minimum=0),
}
"""By dotted key. A key without a rule is one of the core's positive numbers and needs no help line."""


def leaves(config: object, prefix: str = "") -> dict[str, object]:
    """Every leaf of ``config`` by dotted key, in declaration order; lists and dicts are leaves."""
    found: dict[str, object] = {}
    if not is_dataclass(config):
        return {prefix: config}
    for entry in fields(config):
        key = f"{prefix}.{entry.name}" if prefix else entry.name
        found.update(leaves(getattr(config, entry.name), key))
    return found
