"""Diagnoses for people: a few lines for each rank, one line for each tensor that needs explaining."""

from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from dcr.model import AuditProgress, RankDiagnosis, ReceiverDiagnosis, ReceiverState
from dcr_recipes.commands.diagnosed import Diagnosed, by_method

if TYPE_CHECKING:
    from rich.console import Console

_MIB = 1 << 20
_LEARNED = "learned"
_COLUMNS = ("tensor", "method", "takes", "MiB", "why")


def show(found: Diagnosed, console: "Console") -> None:
    """Print everything."""
    for name, reason in found.away.items():
        console.print(Text(f"{name}: {reason}", style="bold red"), soft_wrap=True)
    for diagnosis in found.instances.values():
        _show_instance(diagnosis, console, is_live=found.is_live)
    if not found.instances and found.is_live:
        console.print(
            "no receiver of this run is alive; dcr doctor --model MODEL looks at a loader without one"
        )
    verdict, style = ("well", "bold green") if found.is_well else ("NOT WELL", "bold red")
    console.print(verdict, style=style)


def _show_instance(diagnosis: ReceiverDiagnosis, console: "Console", *, is_live: bool) -> None:
    state = f"  {diagnosis.state.value}" if is_live else ""
    version = f", version {diagnosis.version}" if diagnosis.version >= 0 else ""
    style = "bold red" if is_live and diagnosis.state is ReceiverState.EMPTY else "bold"
    console.print(Text(f"{diagnosis.receiver}{state}{version}", style=style))
    if diagnosis.rebuilt:
        console.print(Text(f"  storage was rebuilt: {diagnosis.rebuilt}", style="yellow"), soft_wrap=True)
    for rank in diagnosis.ranks:
        _show_rank(rank, console)
    if is_live:
        _show_audit(diagnosis.audit, console)


def _show_rank(rank: RankDiagnosis, console: "Console") -> None:
    total = sum(choice.num_bytes for choice in rank.tensors.values()) or 1
    shares = "; ".join(
        f"{method} {num} tensors, {num_bytes / _MIB:.1f} MiB ({num_bytes / total:.1%})"
        for method, (num, num_bytes) in by_method(rank).items()
    )
    console.print(f"  rank {rank.rank}: {shares or 'holds nothing'}", soft_wrap=True)
    if rank.guards:
        console.print(f"    the map depends on: {', '.join(rank.guards)}", soft_wrap=True)
    for name, reason in sorted(rank.refusals.items()):
        console.print(Text(f"    refused {name}: {reason}", style="bold red"), soft_wrap=True)
    others = {
        n: c for n, c in sorted(rank.tensors.items()) if c.method != _LEARNED and n not in rank.refusals
    }
    if not others:
        return
    table = Table(*_COLUMNS, box=None, padding=(0, 2, 0, 4))
    for name, choice in others.items():
        table.add_row(name, choice.method, choice.path.value, f"{choice.num_bytes / _MIB:.3f}", choice.reason)
    console.print(table)


def _show_audit(audit: AuditProgress, console: "Console") -> None:
    rate = audit.num_bytes / _MIB / audit.seconds if audit.seconds else 0.0
    console.print(
        f"  background audit: {audit.num_passes} passes, {audit.num_bytes / _MIB:.1f} MiB in "
        f"{audit.seconds:.2f} s of work ({rate:.0f} MiB/s), {audit.num_dropped} tensors begun again",
        soft_wrap=True,
    )
    if audit.finding is not None:
        style = "bold red"
        console.print(
            Text(f"  it found, and had repaired: {audit.finding.detail}", style=style), soft_wrap=True
        )
