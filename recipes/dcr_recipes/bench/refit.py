"""``dcr bench refit``: whole refits over links, beside a full checkpoint (paper sections 8.1, 8.6, 8.7).

Owners, rollout nodes and the coordinator are processes of their own; the store is a real S3 server, which
every node reaches through a link of its own. Bounds follow from what the processes recorded
(``dcr_recipes.trace.accounting``). The reference moves the whole checkpoint through the same links, in the
same run.
"""

import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dcr_recipes.bench.refit_cluster import Cluster, LinkOptions, Reference, Refitted, cluster, new_run
from dcr_recipes.bench.refit_setup import Setup, Sizes
from dcr_recipes.bench.report import Column, Report, Row, Steps, percent, places
from dcr_recipes.links.node import choose

_COLUMNS = (
    Column("mode", "mode"),
    Column("num_nodes", "nodes"),
    Column("rate", "changed", percent(2)),
    Column("payload_mb", "payload MB", places(1)),
    Column("latency_s", "latency s", places(2)),
    Column("latency_min_s", "min", places(2)),
    Column("latency_max_s", "max", places(2)),
    Column("construction_s", "construct", places(2)),
    Column("upload_s", "upload", places(2)),
    Column("download_s", "download", places(2)),
    Column("finalization_s", "final", places(2)),
    Column("excess", "over bounds", percent(0)),
    Column("pause_s", "pause s", places(2)),
    Column("reference_s", "reference s", places(1)),
    Column("speedup", "speed-up", places(1, suffix="x")),
)


@dataclass(frozen=True, slots=True)
class Options:
    """What is measured. ``modes`` and ``nodes`` each need a cluster of their own, ``rates`` share one."""

    rates: tuple[float, ...] = (0.01, 0.03, 0.05)
    nodes: tuple[int, ...] = (1, 3)
    modes: tuple[str, ...] = ("sync",)
    transport: str = "s3"
    num_owners: int = 2
    num_warm: int = 5
    num_timed: int = 10
    num_references: int = 1
    sizes: Sizes = field(default_factory=Sizes)
    link: LinkOptions = field(default_factory=lambda: LinkOptions(50.0))
    limiter: str = "auto"
    ahead: int = 3
    poll_s: float = 0.02


def quick(options: Options) -> Options:
    """The same in seconds: a tiny model, one refit of each."""
    return replace(
        options,
        rates=options.rates[:1],
        nodes=options.nodes[:1],
        num_warm=1,
        num_timed=1,
        sizes=Sizes(bucket_mib=1, chunk_mib=1, quick=True),
    )


def run(options: Options) -> Report:
    """Measure everything that ``options`` ask for."""
    through_s3 = options.transport == "s3"
    limiter, told = (
        choose(options.limiter) if through_s3 else ("user", "links: none, a folder on this machine")
    )
    link = LinkOptions(
        options.link.mbit if through_s3 else 0.0, limiter, options.link.delay_ms, options.link.loss
    )
    num_clusters = len(options.modes) * len(options.nodes)
    steps = Steps(num_clusters * (2 + len(options.rates)))
    rows, extra = list[Row](), list[dict[str, Any]]()
    for num_nodes in options.nodes:
        for mode in options.modes:
            with tempfile.TemporaryDirectory(prefix="dcr-bench-") as folder:
                setup = Setup(
                    Path(folder), new_run(), options.num_owners, num_nodes, mode, options.sizes,
                    ahead=options.ahead, poll_s=options.poll_s,
                )  # fmt: skip
                steps(f"{mode}, {num_nodes} nodes: starting")
                with cluster(setup, link, through_s3=through_s3) as made:
                    found, beside = _measure(made, options, steps)
                rows += found
                extra.append(beside)
    steps.end()
    return _report(rows, extra, options, link, told)


def _measure(made: Cluster, options: Options, steps: Steps) -> tuple[list[Row], dict[str, Any]]:
    setup, rows = made.setup, list[Row]()
    where = f"{setup.mode}, {setup.num_nodes} nodes"
    steps(f"{where}: full checkpoint")
    references = [made.reference() for _ in range(options.num_references)]
    for rate in options.rates:
        steps(f"{where}: {100 * rate:g}%")
        refits = [made.refit(rate) for _ in range(options.num_warm + options.num_timed)]
        rows.append(_row(setup, rate, refits[options.num_warm :], references))
        steps.note(_line(rows[-1]))
    return rows, {
        "mode": setup.mode,
        "num_nodes": setup.num_nodes,
        "num_proven": made.prove(),
        "peak_mib": {name: round(peak / (1 << 20)) for name, peak in made.peaks().items()},
    }


def _row(setup: Setup, rate: float, refits: Sequence[Refitted], references: Sequence[Reference]) -> Row:
    """Means over ``refits``, with the range of the latency; ``excess`` is over transport and finalization."""
    made = [each.accounting for each in refits]
    means: Row = {name: statistics.fmean(each.columns()[name] for each in made) for name in made[0].columns()}
    pauses = [max(each.pauses_s) for each in refits if each.pauses_s]
    reference_s = statistics.fmean(each.seconds for each in references) if references else None
    latency_s = means["latency_s"]
    return {
        "mode": setup.mode,
        "num_nodes": setup.num_nodes,
        "wanted_rate": rate,
        "rate": statistics.fmean(each.num_changed / each.num_elements for each in refits),
        "payload_mb": statistics.fmean(each.payload_bytes for each in refits) / 1e6,
        "num_payloads": refits[-1].num_payloads,
        **means,
        "latency_min_s": min(each.latency_s for each in made),
        "latency_max_s": max(each.latency_s for each in made),
        "wall_s": statistics.fmean(each.wall_s for each in refits),
        "excess": latency_s / (means["transport_s"] + means["finalization_s"]) - 1,
        "transport_to_construction": means["transport_s"] / max(means["construction_s"], 1e-9),
        "pause_s": statistics.fmean(pauses) if pauses else None,
        "pause_min_s": min(pauses, default=None),
        "pause_max_s": max(pauses, default=None),
        "reference_s": reference_s,
        **_reference(references),
        "speedup": reference_s / latency_s if reference_s is not None else None,
    }


def _reference(references: Sequence[Reference]) -> Row:
    """Columns of the full checkpoint; None where none was moved."""
    return {
        "reference_upload_s": statistics.fmean(each.upload_s for each in references) if references else None,
        "reference_download_s": (
            statistics.fmean(each.download_s for each in references) if references else None
        ),
        "reference_mb": references[0].num_bytes / 1e6 if references else None,
    }


def _line(row: Row) -> str:
    """One row, for whoever waits for the others."""
    named = ("latency", "latency_min", "latency_max", "construction", "upload", "download", "finalization")
    return ", ".join(f"{name} {row[f'{name}_s']:.2f}" for name in (*named, "check", "rest")) + " s"


def _report(
    rows: list[Row], extra: list[dict[str, Any]], options: Options, link: LinkOptions, told: str
) -> Report:
    sizes = options.sizes
    return Report(
        bench="refit",
        title="Whole refits, beside a full checkpoint over the same links",
        columns=[column for column in _COLUMNS if any(row.get(column.key) is not None for row in rows)],
        rows=rows,
        setup={
            "transport": options.transport, "link_mbit": link.mbit, "limiter": link.limiter,
            "delay_ms": link.delay_ms, "loss": link.loss, "num_owners": options.num_owners,
            "num_warm": options.num_warm, "num_timed": options.num_timed, "bucket_mib": sizes.bucket_mib,
            "chunk_mib": sizes.chunk_mib, "ahead": options.ahead, "poll_s": options.poll_s,
        },
        notes=_notes(rows, extra, options, link, told),
        extra={"clusters": extra},
    )  # fmt: skip


def _notes(
    rows: list[Row], extra: list[dict[str, Any]], options: Options, link: LinkOptions, told: str
) -> list[str]:
    proven = sum(each["num_proven"] for each in extra)
    peaks = [f"{name} {mib}" for each in extra for name, mib in each["peak_mib"].items()]
    count = f"{options.num_warm} warm-up and {options.num_timed} timed refits of each kind, means"
    linked = f", {link.mbit:g} Mbit/s each way for every node, trainer nodes too" if link.mbit else ""
    reference = rows[0]["reference_mb"] if rows else None
    share = "each trainer uploads its share, then every node downloads all; transport only"
    return [
        told + linked,
        f"{count}; latency: t1 - t0 without the check; bounds: of the busiest owner or node",
        "over bounds: latency over transport bound (the longer of upload and download) plus finalization",
        *([f"reference: {reference:.0f} MB; {share}"] if reference is not None else []),
        f"{options.num_owners} trainer nodes; payloads of {options.sizes.bucket_mib} MiB of source",
        "rollout nodes: transformers' Qwen3, changes placed as learned from its loader",
        f"at the end all bits of {proven} instances had the digests of the committed version",
        f"peak MiB by process: {', '.join(peaks)}",
        *_verdicts(rows),
    ]


def _verdicts(rows: Sequence[Row]) -> list[str]:
    """What the bounds say: the first where transport rules, the second where both modes were measured."""
    found = [
        f"{row['mode']}, {row['num_nodes']} nodes, {100 * row['wanted_rate']:g}%: transport is"
        f" {row['transport_to_construction']:.1f} times construction; latency is transport + finalization"
        f" {100 * row['excess']:+.1f}%"
        for row in rows
        if row["transport_to_construction"] >= 2
    ]
    pauses = {(row["num_nodes"], row["wanted_rate"], row["mode"]): row["pause_s"] for row in rows}
    for (num_nodes, rate, mode), sync_s in pauses.items():
        async_s = pauses.get((num_nodes, rate, "async"))
        if mode == "sync" and sync_s and async_s:
            found.append(
                f"{num_nodes} nodes, {100 * rate:g}%: a pause of {sync_s:.2f} s in synchronous mode is"
                f" {async_s:.2f} s in asynchronous mode, {sync_s / async_s:.1f} times shorter"
            )
    return found
