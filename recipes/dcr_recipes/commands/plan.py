"""``dcr plan``: what a refit of a model in a layout will be made of, without weights and without a GPU."""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dcr.errors import ConfigError
from dcr_recipes.commands.arguments import add_json

if TYPE_CHECKING:
    from dcr.source.plan import Plan, PlanReport

DTYPES = ("bfloat16", "float16", "float32")
_LANE = ".venv-megatron/bin/python"


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "plan",
        help="count tasks, items, bytes and baseline memory of a layout, without weights",
        description="Count what a refit will be made of, from a Hugging Face config.json and a layout:"
        " tensors, direct and residual tasks, items when everything changes, bytes, the balance of owners,"
        " baseline memory and the expected payload. No weights, no GPU. Megatron plans need Megatron-Bridge:"
        " without it here, the environment that 'make setup-megatron' installs is used.",
        epilog="example: dcr plan --hf-config config.json --trainer megatron --tp 4 --etp 4 --json",
    )
    parser.add_argument(
        "--hf-config", type=Path, required=True, metavar="FILE", help="config.json of a model"
    )
    parser.add_argument("--trainer", choices=("fsdp", "megatron"), required=True)
    _add_layout(parser)
    parser.add_argument("--dtype", choices=DTYPES, default="bfloat16", help="of served parameters")
    parser.add_argument("--rate", type=float, default=0.01, help="share of elements that a step changes")
    add_json(parser)
    parser.add_argument("--debug", action="store_true", help="show tracebacks instead of one-line errors")
    parser.set_defaults(command=run)


def _add_layout(parser: argparse.ArgumentParser) -> None:
    for name, text in _DEGREES.items():
        parser.add_argument(_flag(name), type=int, default=1, metavar="N", help=f"{text} (default 1)")
    parser.add_argument(
        "--classification",
        choices=("closed_form", "published"),
        default="closed_form",
        help="closed_form projects all that selects elements; published follows the paper (Megatron only)",
    )
    parser.add_argument(
        "--ownership",
        choices=("balanced", "published"),
        help="balanced cuts large shards over their replicas; published gives each to one, by a hash"
        " (default: published with that classification, else balanced)",
    )


_DEGREES = {
    "tp": "tensor-parallel degree",
    "etp": "expert-tensor-parallel degree",
    "ep": "expert-parallel degree",
    "pp": "pipeline-parallel degree",
    "dp": "data-parallel degree of dense weights; with fsdp the ranks that shard them",
    "dp_replicate": "fsdp: copies of the sharded model (HSDP)",
    "cp": "context-parallel degree",
}
_MEGATRON = ("tp", "etp", "ep", "pp", "dp", "cp")


@dataclass(frozen=True, slots=True)
class Request:
    """The command's arguments."""

    config: Path
    trainer: str
    degrees: dict[str, int]
    classification: str
    dtype: str


def run(args: argparse.Namespace) -> int:
    """Print the plan.

    Raises:
        ConfigError: the file, the layout or the architecture cannot be planned.
        UnsupportedPath: the layout cannot be exact.
    """
    if not 0 <= args.rate <= 1:
        raise ConfigError(f"--rate {args.rate}: give a share from 0 to 1")
    if args.trainer == "megatron" and not _has_bridge():
        return _in_the_lane()
    from dcr.source.plan import report

    degrees = {name: getattr(args, name) for name in _DEGREES}
    request = Request(args.hf_config, args.trainer, degrees, args.classification, args.dtype)
    quiet = nullcontext() if args.debug else _silent()
    with quiet, redirect_stdout(sys.stderr):  # where the Bridge prints remarks; ours is one JSON object
        answer = report(
            make_plan(request), args.rate, args.ownership or default_ownership(args.classification)
        )
    if args.json:
        print(json.dumps(as_json(answer), indent=2))
    else:
        _show(answer, args)
    return 0


def default_ownership(classification: str) -> str:
    """The paper's rule with the paper's classification."""
    return "published" if classification == "published" else "balanced"


def make_plan(request: Request) -> "Plan":
    """The plan of either trainer.

    Raises:
        ConfigError, UnsupportedPath: as ``run``.
    """
    config = read_config(request.config)
    if request.trainer == "fsdp":
        from dcr_adapters.fsdp.plan import Mesh, plan_fsdp

        _refuse_other(request, ("dp", "tp", "dp_replicate"))
        if request.classification != "closed_form":
            raise ConfigError("--classification published is Megatron's: FSDP2 shards are all direct")
        sizes = request.degrees
        mesh = Mesh(sizes.get("dp", 1), sizes.get("dp_replicate", 1), sizes.get("tp", 1))
        return plan_fsdp(config, mesh, request.dtype)
    from dcr_adapters.megatron.plan import plan_megatron
    from dcr_adapters.megatron.ranks import Degrees

    _refuse_other(request, _MEGATRON)
    degrees: dict[str, Any] = {name: size for name, size in request.degrees.items() if name in _MEGATRON}
    return plan_megatron(config, Degrees(**degrees), request.classification, request.dtype)


def _refuse_other(request: Request, known: Sequence[str]) -> None:
    for name, size in request.degrees.items():
        if name not in known and size != 1:
            raise ConfigError(
                f"{_flag(name)} {size}: --trainer {request.trainer} has no such axis; "
                f"it has {', '.join(map(_flag, known))}"
            )


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def read_config(path: Path) -> Any:
    """A ``PretrainedConfig`` from a config.json.

    Raises:
        ConfigError: the file is missing, no JSON object, or of a model type that transformers does not know.
    """
    from transformers import AutoConfig

    try:
        fields = json.loads(path.read_text())
    except (OSError, ValueError) as err:
        raise ConfigError(f"--hf-config {path}: {err}") from None
    if not isinstance(fields, dict) or "model_type" not in fields:
        raise ConfigError(f"--hf-config {path}: no 'model_type'; give a model's config.json")
    try:
        return AutoConfig.for_model(**fields)
    except (ValueError, TypeError) as err:
        raise ConfigError(f"--hf-config {path}: {err}") from None


def as_json(answer: "PlanReport") -> dict[str, Any]:
    """The stable keys."""
    return {
        "num_tensors": answer.num_tensors,
        "num_affine": answer.num_affine,
        "num_residual": answer.num_residual,
        "items": {
            "delta": answer.delta_items,
            "overwrite": answer.overwrite_items,
            "total": answer.delta_items + answer.overwrite_items,
        },
        "bytes_total": answer.bytes_total,
        "bytes_residual": answer.bytes_residual,
        "owner_bytes": {"min": answer.owner_bytes_min, "max": answer.owner_bytes_max},
        "baseline_bytes_per_rank": answer.baseline_bytes_per_rank,
        "payload_bytes": answer.payload_bytes,
    }


def _show(answer: "PlanReport", args: argparse.Namespace) -> None:
    share = 100 * answer.bytes_residual / max(answer.bytes_total, 1)
    mean = answer.baseline_bytes_per_rank
    rows = {
        "tensors": f"{answer.num_tensors}: {answer.num_affine} direct, {answer.num_residual} residual",
        "items when all change": f"{answer.delta_items + answer.overwrite_items}: {answer.delta_items} as"
        f" differences, {answer.overwrite_items} as whole values",
        "dense refit": f"{_gb(answer.bytes_total)}, {share:.2f}% of it residual",
        "owned by a rank": f"{_gb(answer.owner_bytes_min)} to {_gb(answer.owner_bytes_max)}",
        "baseline of a rank": f"{_gb(mean)} of host memory on average",
        f"payload at {100 * args.rate:g}% changed": f"about {_gb(answer.payload_bytes)}",
    }
    for name, text in rows.items():
        print(f"{name:<26}{text}")


def _gb(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:.3f} GB"


@contextmanager
def _silent() -> Iterator[None]:
    """Megatron tells at length what it does not find on a machine without CUDA."""
    import logging
    import warnings

    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        logging.disable(before)


def _has_bridge() -> bool:
    from importlib.util import find_spec

    return find_spec("megatron") is not None


def _in_the_lane() -> int:
    """The same command in the Megatron environment beside this one.

    Raises:
        ConfigError: there is none; says how to install it.
    """
    python = Path(sys.prefix).parent / _LANE
    if not (python.is_file() and os.access(python, os.X_OK)):
        raise ConfigError(
            f"a Megatron plan needs Megatron-Bridge, which is neither here nor in {python}; "
            "install it with: make setup-megatron"
        )
    arguments = [str(python), "-m", "dcr_recipes.cli", *sys.argv[1:]]
    return subprocess.run(arguments, check=False).returncode
