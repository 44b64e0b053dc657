"""``dcr bench``: measure codec, scan, construction and apply on this machine."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from dcr_recipes.commands.numbers import count, positive, share

if TYPE_CHECKING:
    from dcr_recipes.bench.report import Report

_HINT = "Rows and keys of --json are stable; benchmarks/README.md says how to read the tables."


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command and its benchmarks to the parser."""
    parser = commands.add_parser(
        "bench",
        help="measure the parts of a refit, or whole refits, on this machine",
        description="Measure a part of a refit, or whole ones. Each table has its ceiling from the same run."
        f" {_HINT}",
        epilog="example: dcr bench scan --quick --json",
    )
    benches = parser.add_subparsers(required=True, metavar="BENCH")
    _values(benches)
    _locations(benches)
    _scan(benches)
    _construct(benches)
    _codec(benches)
    _apply(benches)
    _catch_up(benches)
    _refit(benches)


def run(args: argparse.Namespace) -> int:
    """Run the chosen benchmark and print its report.

    Raises:
        ConfigError: something that it needs is not installed.
    """
    report: Report = args.bench(args)
    if args.json:
        print(report.as_json())
    else:
        from dcr_recipes.bench.report import show

        show(report)
    return 0


def _bench(
    benches: "argparse._SubParsersAction[argparse.ArgumentParser]", name: str, text: str
) -> argparse.ArgumentParser:
    parser = benches.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}. {_HINT}")
    parser.add_argument("--json", action="store_true", help="one JSON object for programs")
    parser.add_argument(
        "--quick", action="store_true", help="small sizes, one round: seconds, for smoke tests"
    )
    parser.add_argument("--debug", action="store_true", help="show tracebacks instead of one-line errors")
    parser.set_defaults(command=run)
    return parser


def _mib(parser: argparse.ArgumentParser, text: str) -> None:
    parser.add_argument("--mib", type=count, metavar="N", help=text)


def _values(benches: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    def bench(args: argparse.Namespace) -> "Report":
        from dcr_recipes.bench import values

        return values.run(quick=args.quick)

    text = "bytes of changed values: the paper's Table 2, beside the entropy of order 0"
    _bench(benches, "values", text).set_defaults(bench=bench)


def _locations(benches: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    def bench(args: argparse.Namespace) -> "Report":
        from dcr_recipes.bench import locations

        return locations.run(quick=args.quick)

    text = "bits a changed location, uniform and clustered, beside the bound H(s)/s"
    _bench(benches, "locations", text).set_defaults(bench=bench)


def _scan(benches: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    def bench(args: argparse.Namespace) -> "Report":
        from dcr_recipes.bench import scan

        return scan.run(quick=args.quick, mib=args.mib)

    text = "finding changes, by kernel and threads, beside the speed of reading memory"
    parser = _bench(benches, "scan", text)
    _mib(parser, "MiB of the candidate (default 256); the baseline takes as much")
    parser.set_defaults(bench=bench)


def _construct(benches: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    def bench(args: argparse.Namespace) -> "Report":
        from dcr_recipes.bench import construct, construct_modes

        if args.modes:
            return construct_modes.run(quick=args.quick, mib=args.mib, tp=args.tp, directory=args.dir)
        return construct.run(quick=args.quick, mib=args.mib, directory=args.dir)

    text = "constructing all payloads of a checkpoint, by codec, with CPU seconds of every stage"
    parser = _bench(benches, "construct", text)
    _modes(parser)
    _mib(parser, "MiB of the checkpoint (default 1024); takes three times as much memory, --modes four")
    parser.add_argument(
        "--dir", type=Path, metavar="DIR", help="where the trackers' file goes (default: the system's)"
    )
    parser.set_defaults(bench=bench)


def _modes(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--modes",
        action="store_true",
        help="the paper's Table 3 in place of codecs: direct projection (X with differences, P with absolute"
        " values) against full conversion (F) of weights that are fused and split as Megatron's",
    )
    parser.add_argument(
        "--tp",
        type=int,
        choices=(1, 2, 4),
        default=4,
        metavar="N",
        help="ranks of --modes: 1, 2 or 4 (default 4)",
    )


def _codec(benches: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    def bench(args: argparse.Namespace) -> "Report":
        from dcr_recipes.bench import codec

        return codec.run(quick=args.quick, mib=args.mib)

    text = "encoding and decoding the same changes with every codec, beside their entropy"
    parser = _bench(benches, "codec", text)
    _mib(parser, "MiB of the checkpoint (default 384); only its changes are kept")
    parser.set_defaults(bench=bench)


def _apply(benches: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    text = "applying changes through the learned map, the hook and a dense load, beside the floor of writing"
    parser = _bench(benches, "apply", text)
    parser.add_argument(
        "--runtime", choices=("hf", "vllm"), default="hf", help="default hf; vllm needs 'make setup-vllm'"
    )
    parser.add_argument(
        "--model", choices=("dense", "moe"), nargs="+", help="default: all that the runtime has"
    )
    parser.add_argument("--tp", type=count, nargs="+", metavar="N", help="default: hf 1, vllm 1 and 2")
    parser.add_argument("--rates", type=share, nargs="+", metavar="S", help="default 0.01 0.03")
    parser.add_argument(
        "--python", type=Path, metavar="FILE", help="interpreter of the lane (default .venv-vllm)"
    )
    parser.add_argument(
        "--memory",
        type=count,
        nargs="?",
        const=1000,
        metavar="N",
        help="measure memory over N refits (default 1000) in place of seconds",
    )
    parser.set_defaults(bench=_run_apply)


def _run_apply(args: argparse.Namespace) -> "Report":
    from dcr_recipes.bench import apply, memory

    if args.memory:
        return memory.run(num_refits=args.memory, quick=args.quick)
    return apply.run(
        apply.cases_of(
            apply.Choice(args.runtime, args.model, args.tp, args.rates, args.python), quick=args.quick
        )
    )


def _catch_up(benches: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    def bench(args: argparse.Namespace) -> "Report":
        from dcr_recipes.bench import catch_up

        return catch_up.run(quick=args.quick, rate=args.rate, gigabytes=args.gb)

    text = "bringing a receiver 1, 7 and 50 versions forward, beside a dense restore and a dense refit"
    parser = _bench(benches, "catch-up", text)
    parser.add_argument(
        "--rate", type=share, default=0.01, metavar="S", help="bits that a version changes, default 0.01"
    )
    parser.add_argument(
        "--gb",
        type=positive,
        default=1.0,
        metavar="GB",
        help="10^9 bytes of weights at least (1); takes about five times as much memory and disk",
    )
    parser.set_defaults(bench=bench)


def _refit(benches: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    from dcr_recipes.commands.bench_refit import TEXT, add_arguments

    add_arguments(_bench(benches, "refit", TEXT))
