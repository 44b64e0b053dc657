"""Judging a run that has ended: its archive, its metrics, its answers, and the replay of a sample."""

from collections.abc import Callable

from dcr.errors import RefitError
from dcr.model import CommitRecord
from dcr.transport.chain import history
from dcr_recipes.chaos.answers import Answer, read_lines, sample, stale
from dcr_recipes.chaos.history import Commit, lost_versions, uncommitted
from dcr_recipes.chaos.options import Options
from dcr_recipes.chaos.replay import Verdict, replay, stock_model
from dcr_recipes.chaos.report import Evidence
from dcr_recipes.chaos.storm import Parts, Storm
from dcr_recipes.config import RunConfig
from dcr_recipes.layout import RunFolder
from dcr_recipes.processes.serving import site_of


def judge(
    storm: Storm,
    folder: RunFolder,
    config: RunConfig,
    options: Options,
    *,
    read: Callable[[], CommitRecord],
    failure: str,
) -> Evidence:
    """Everything that the run has left behind, looked at once its processes are gone."""
    parts = storm.parts
    chained, trouble = archived(folder, config, read)
    answers = read_lines(parts.askers.path)
    rows = parts.metrics.rows()
    spoken_of = [answer.version for answer in answers] + [int(row["version"]) for row in rows]
    return Evidence(
        seed=options.seed,
        seconds=parts.clock(),
        transitions=chained[-1].version if chained else 0,
        faults=storm.faults,
        recoveries=storm.recoveries.done,
        unrecovered=list(storm.recoveries.open.values()),
        restarts=parts.supervisor.num_restarts,
        rows=rows,
        num_answers=len(answers),
        num_refused=parts.askers.num_refused,
        verdict=replayed(parts, config, sample(answers, options.sample, options.seed)),
        stale=stale(answers),
        lost=lost_versions(storm.seen, chained),
        uncommitted=uncommitted(spoken_of, chained),
        failure=failure or trouble,
    )


def archived(
    folder: RunFolder, config: RunConfig, read: Callable[[], CommitRecord]
) -> tuple[list[Commit], str]:
    """The versions that the last record leads back to, oldest first, and what was wrong with reading them."""
    try:
        manifests = history(site_of(folder, config).archive, last := read())
    except RefitError as err:
        return [], f"the archive of the run cannot be read: {err}"
    # A manifest is named by its child; the last one by the record.
    digests = [child.parent[1] for child in manifests[1:] if child.parent is not None] + [last.manifest]
    named = zip(manifests, digests, strict=True)
    return [Commit(m.attempt.version, str(m.attempt), digest) for m, digest in named], ""


def replayed(parts: Parts, config: RunConfig, sampled: list[Answer]) -> Verdict:
    """What the dense copies say about the sample."""
    if not sampled:
        return Verdict([], 0, 0, 0, 0)

    def tell(done: int) -> None:
        parts.screen.show("replaying answers on dense copies", done, len(sampled))

    return replay(sampled, stock_model(config), parts.copies.path, tell)
