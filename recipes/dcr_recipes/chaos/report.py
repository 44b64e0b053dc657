"""The result of a chaos run: its figures, what is wrong with it, and the line that a person reads."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from dcr_recipes.chaos.answers import Answer
from dcr_recipes.chaos.recoveries import Recovery, Struck
from dcr_recipes.chaos.replay import Verdict


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a run left behind. ``rows`` are those of ``metrics.jsonl``.

    ``lost`` versions with how it shows, versions ``uncommitted`` that somebody served or reported,
    ``stale`` answers, faults that were never recovered from, and how the run failed, if it did.
    """

    seed: int
    seconds: float
    transitions: int
    faults: Sequence[Struck]
    recoveries: Sequence[Recovery]
    unrecovered: Sequence[Struck]
    restarts: int
    rows: Sequence[Mapping[str, Any]]
    num_answers: int
    num_refused: int
    verdict: Verdict
    stale: Sequence[Answer]
    lost: Mapping[int, str]
    uncommitted: Sequence[int]
    failure: str


def summarize(found: Evidence) -> dict[str, Any]:
    """``chaos.json``."""
    seconds = [recovery.seconds for recovery in found.recoveries]
    kinds = Counter(str(struck.kind) for struck in found.faults)
    kills = Counter(str(struck.kind) for struck in found.faults if struck.kind.is_kill)
    return {
        "ok": not problems(found),
        "seed": found.seed,
        "seconds": round(found.seconds, 1),
        "transitions": found.transitions,
        "faults": dict(sorted(kinds.items())),
        "kills": dict(sorted(kills.items())),
        "num_kills": kills.total(),
        "restarts": found.restarts,
        "differing_bits": differing_bits(found.rows),
        "refits_verified": len(found.rows),
        "lost_versions": len(found.lost),
        "answers": found.num_answers,
        "refused_requests": found.num_refused,
        "replayed": found.verdict.num_replayed,
        "without_dense_copy": found.verdict.num_without_copy,
        "told_apart_from_the_version_before": [found.verdict.num_told_apart, found.verdict.num_compared],
        "mixed_answers": len(found.verdict.mixed),
        "stale_answers": len(found.stale),
        "recovery_mean_s": round(sum(seconds) / len(seconds), 2) if seconds else None,
        "recovery_worst_s": round(max(seconds), 2) if seconds else None,
        "recovery_by_kind_s": by_kind(found.recoveries),
        "unrecovered": [asdict(struck) for struck in found.unrecovered],
        "problems": problems(found),
    }


def by_kind(recoveries: Sequence[Recovery]) -> dict[str, dict[str, float]]:
    """Number, mean and worst seconds of each kind of fault."""
    kinds = sorted({str(recovery.struck.kind) for recovery in recoveries})
    table = {}
    for kind in kinds:
        seconds = [recovery.seconds for recovery in recoveries if recovery.struck.kind == kind]
        table[kind] = {
            "num": len(seconds),
            "mean": round(sum(seconds) / len(seconds), 2),
            "worst": round(max(seconds), 2),
        }
    return table


def differing_bits(rows: Sequence[Mapping[str, Any]]) -> int | None:
    """Over all refits and instances; None if a refit was not verified."""
    bits = [row.get("verify/differing_bits") for row in rows]
    return None if None in bits or not bits else sum(bit for bit in bits if bit is not None)


def unverified(rows: Sequence[Mapping[str, Any]]) -> list[int]:
    """Versions before the last row's, v0 apart, that have no row: nobody compared them."""
    told = {int(row["version"]) for row in rows}
    return sorted(set(range(1, max(told, default=0))) - told)


def problems(found: Evidence) -> list[str]:
    """What is wrong, a sentence each; empty if nothing is."""
    wrong = [f"the run failed: {found.failure}"] if found.failure else []
    wrong += _wrong_bits(found.rows)
    wrong += [f"version {version} was lost: {how}" for version, how in sorted(found.lost.items())]
    wrong += [
        f"version {version} was never committed but served or reported" for version in found.uncommitted
    ]
    wrong += _wrong_answers(found)
    wrong += [
        f"fault {struck.number} ({struck.kind}, {struck.victim}) was never recovered from"
        for struck in found.unrecovered
    ]
    return wrong


def _wrong_bits(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    bits = differing_bits(rows)
    wrong = [f"version {version} was never compared with a dense refit" for version in unverified(rows)]
    if bits is None:
        wrong.append("not every refit was compared with a dense one")
    elif bits:
        wrong.append(f"{bits} bits differ from dense refits")
    return wrong


def _wrong_answers(found: Evidence) -> list[str]:
    verdict = found.verdict
    wrong = [f"mixed answer {_of(answer)}" for answer in verdict.mixed]
    wrong += [f"stale answer {_of(answer)}: a newer version was served before" for answer in found.stale]
    if not verdict.num_replayed:
        wrong.append("no answer was replayed")
    elif verdict.num_compared and not verdict.num_told_apart:
        wrong.append("no replayed answer can be told from the version before: the replay proves nothing")
    return wrong


def last_line(summary: Mapping[str, Any]) -> str:
    """The whole result in one line."""
    kills = ", ".join(f"{kind.removeprefix('kill ')} {num}" for kind, num in summary["kills"].items())
    recovery = "no fault was recovered from"
    if summary["recovery_mean_s"] is not None:
        recovery = f"recovery mean {summary['recovery_mean_s']} s, worst {summary['recovery_worst_s']} s"
    bits = summary["differing_bits"]
    return (
        f"chaos seed {summary['seed']}: {summary['transitions']} transitions,"
        f" {summary['num_kills']} kills ({kills or 'none'}) of {sum(summary['faults'].values())} faults,"
        f" {'unknown' if bits is None else bits} differing bits, {summary['lost_versions']} lost versions,"
        f" {summary['mixed_answers']} mixed answers of {summary['replayed']} replayed, {recovery}:"
        f" {'ok' if summary['ok'] else 'FAILED'}"
    )


def _of(answer: Answer) -> str:
    return f"of {answer.instance} at version {answer.version}, asked at {answer.asked_at:.2f} s"
