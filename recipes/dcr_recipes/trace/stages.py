"""Which marks of ``dcr.observe`` are kept, on which track, and what a person is told meanwhile.

A stage is a span, or a pair of points ``<name>.before`` and ``<name>.after``. Marks inside a tensor are
left out: a run of a real model would have millions.
"""

from collections.abc import Mapping

from dcr.observe import ANCHOR

TRACKS: Mapping[str, str] = {
    "process.join": "start-up",
    "process.build": "start-up",
    "process.wait": "start-up",
    "trainer.open": "start-up",
    "trainer.rollout": "rollout",
    "trainer.train": "train",
    "trainer.checkpoint": "checkpoint",
    "trainer.gather": "gather",
    "trainer.refit": "refit",
    "trainer.verify": "verify",
    "trainer.probe": "probe",
    "owner.construct": "construction",
    "owner.residual": "residual conversion",
    "owner.compare": "comparison",
    "owner.project": "projection",
    "owner.encode": "encoding",
    "owner.compress": "compression",
    "owner.send": "sending",
    "owner.close": "close",
    "owner.fold_in": "fold-in",
    ANCHOR: "anchor",
    "coordinator.prepare": "prepare",
    "coordinator.restore": "restore",
    "coordinator.mark_opened": "mark opened",
    "coordinator.open_apply": "open apply",
    "coordinator.construct": "construct",
    "coordinator.stage": "stage",
    "coordinator.staged": "stage",
    "coordinator.finish": "finish",
    "coordinator.commit": "commit",
    "coordinator.fold_in": "fold-in",
    "coordinator.settle": "settle",
    "runtime.generate": "generate",
    "runtime.load_dense": "dense load",
    "receiver.restore": "restore",
    "receiver.open_apply": "open apply",
    "receiver.fetch": "fetch",
    "receiver.decode": "decode",
    "receiver.hold": "host staging",
    "receiver.pause": "pause",
    "receiver.stage": "staging",
    "receiver.apply": "apply",
    "receiver.check": "checks",
    "receiver.audit": "checks",
    "receiver.finish": "finish",
    "receiver.settle": "settle",
}
"""Stage -> the track of its process that shows it."""

TRACK_ORDER: tuple[str, ...] = (
    "start-up", "rollout", "generate", "train", "checkpoint", "gather", "refit", "verify", "probe",
    "prepare", "restore", "mark opened", "open apply", "pause", "stage", "construct",
    "construction", "residual conversion", "comparison", "projection", "encoding", "compression", "sending",
    "close", "fetch", "host staging", "decode", "staging", "apply", "finish", "checks", "dense load",
    "commit", "fold-in", "settle", "anchor",
)  # fmt: skip
"""Tracks from top to bottom, which is the order in which a transition passes them."""

FLUSHED = frozenset(
    {
        "process.join", "process.build", "process.wait", "trainer.open", "trainer.refit", "trainer.verify",
        "owner.fold_in", "coordinator.settle", "receiver.settle", "receiver.restore", "runtime.load_dense",
    }
)  # fmt: skip
"""Stages after which a process writes what it has collected: the end of its part of a transition."""

PHASES: Mapping[str, str] = {
    "process.join.before": "joining the other ranks",
    "process.build.before": "loading the model",
    "process.build.after": "loaded the model",
    "process.wait.before": "waiting for the run",
    "trainer.open.before": "opening the run",
    "trainer.rollout.before": "rollout of step {step}",
    "trainer.train.before": "training step {step}",
    "trainer.checkpoint.before": "checkpoint of v{version}",
    "trainer.gather.before": "gathering v{version}",
    "trainer.refit.before": "refit to v{version}",
    "trainer.refit.after": "at v{version}",
    "trainer.verify.before": "comparing bits of v{version}",
    "trainer.verify.after": "at v{version}",
    "trainer.probe.before": "asking the instances at v{version}",
    "trainer.probe.after": "at v{version}",
    "coordinator.prepare.before": "preparing, {attempt}",
    "coordinator.restore.before": "restoring receivers, attempt {attempt}",
    "coordinator.construct.before": "streaming attempt {attempt}",
    "coordinator.staged.before": "waiting until attempt {attempt} is staged",
    "coordinator.finish.before": "finishing attempt {attempt}",
    "coordinator.commit.before": "committing attempt {attempt}",
    "coordinator.fold_in.before": "fold-in of attempt {attempt}",
    "coordinator.settle.after": "committed {attempt}",
    "receiver.restore.before": "restoring v{version}",
    "receiver.restore.after": "restored v{version}",
    "receiver.open_apply.after": "applying attempt {attempt}",
    "receiver.finish.before": "checking attempt {attempt}",
    "receiver.settle.after": "serving v{version}",
    "runtime.load_dense.before": "loading v{version}",
    "runtime.load_dense.after": "serving v{version}",
    "runtime.generate.before": "generating with v{version}",
    "runtime.generate.after": "serving v{version}",
}
"""Point -> what its process is doing from then on; braces are fields of the point."""
