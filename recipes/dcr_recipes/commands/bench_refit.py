"""Arguments of ``dcr bench refit``."""

import argparse
from typing import TYPE_CHECKING

from dcr_recipes.commands.numbers import chance, count, count_or_none, none_or_more, positive, share

if TYPE_CHECKING:
    from dcr_recipes.bench.refit import Options
    from dcr_recipes.bench.report import Report

TEXT = "whole refits over limited links, with lower bounds, beside a full checkpoint (Figures 10 and 11)"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what can be chosen."""
    _add_cluster(parser)
    _add_links(parser)
    _add_rounds(parser)
    parser.set_defaults(bench=_run)


def _add_cluster(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--gb", type=positive, default=1.0, metavar="GB", help="10^9 bytes of weights at least (1)"
    )
    parser.add_argument("--rates", type=share, nargs="+", default=[0.01, 0.03, 0.05], metavar="S",
                        help="shares of changed elements (0.01 0.03 0.05)")  # fmt: skip
    parser.add_argument(
        "--nodes", type=count, nargs="+", default=[1, 3], metavar="N", help="rollout nodes (1 3)"
    )
    parser.add_argument("--owners", type=count, default=2, metavar="N", help="trainer nodes (2)")
    parser.add_argument("--mode", choices=("sync", "async"), nargs="+", default=["sync"], help="default sync")


def _add_links(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--transport", choices=("s3", "directory"), default="s3",
                        help="a SeaweedFS server behind links, or a folder without any")  # fmt: skip
    parser.add_argument("--link-mbit", type=positive, default=50.0, metavar="MBIT",
                        help="10^6 bits a second each way of every node's link (50)")  # fmt: skip
    parser.add_argument("--link-delay-ms", type=none_or_more, default=0.0, metavar="MS", help="each way (0)")
    parser.add_argument("--link-loss", type=chance, default=0.0, metavar="P",
                        help="chance that 64 KiB are lost, and their connection with them (0)")  # fmt: skip
    parser.add_argument("--limiter", choices=("auto", "tbf", "user"), default="auto",
                        help="tbf of the kernel, in a network namespace, or user space (auto)")  # fmt: skip


def _add_rounds(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--warm", type=count, default=5, metavar="N", help="warm-up refits of each kind (5)")
    parser.add_argument("--timed", type=count, default=10, metavar="N", help="timed refits of each kind (10)")
    parser.add_argument(
        "--references", type=count_or_none, default=1, metavar="N", help="full checkpoints; 0: none (1)"
    )
    parser.add_argument(
        "--bucket-mib", type=count, default=32, metavar="N", help="MiB of source a payload (32)"
    )
    parser.add_argument("--ahead", type=count, default=3, metavar="N", help="payloads fetched ahead (3)")
    parser.add_argument(
        "--poll-s",
        type=positive,
        default=0.02,
        metavar="S",
        help="shortest pause between looks for payloads (0.02)",
    )


def options_of(args: argparse.Namespace) -> "Options":
    """What the words mean."""
    from dcr_recipes.bench.refit import Options
    from dcr_recipes.bench.refit_cluster import LinkOptions
    from dcr_recipes.bench.refit_setup import Sizes

    return Options(
        rates=tuple(args.rates), nodes=tuple(args.nodes), modes=tuple(args.mode), transport=args.transport,
        num_owners=args.owners, num_warm=args.warm, num_timed=args.timed, num_references=args.references,
        sizes=Sizes(args.gb, args.bucket_mib, min(args.bucket_mib, 16)),
        link=LinkOptions(args.link_mbit, delay_ms=args.link_delay_ms, loss=args.link_loss),
        limiter=args.limiter, ahead=args.ahead, poll_s=args.poll_s,
    )  # fmt: skip


def _run(args: argparse.Namespace) -> "Report":
    from dcr_recipes.bench import refit

    options = options_of(args)
    return refit.run(refit.quick(options) if args.quick else options)
