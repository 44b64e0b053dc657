"""One trainer rank."""

import os
import sys
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from dcr import observe
from dcr.model import ReceiverReport
from dcr.refit import Refit
from dcr.transport.peers import Peers
from dcr_recipes.delta import DeltaRefitter
from dcr_recipes.dense import DenseRefitter
from dcr_recipes.details import StepDetails
from dcr_recipes.grpo.rollout import over_http
from dcr_recipes.grpo.settings import settings_of
from dcr_recipes.grpo.training import GrpoTraining, assemble
from dcr_recipes.loop import Loop
from dcr_recipes.members import Members, ReadMembers
from dcr_recipes.mixed import Probers, Verifiers
from dcr_recipes.models.build import start_of
from dcr_recipes.probe import LONG_PROMPT, PROMPT, Prober
from dcr_recipes.processes.border import PARENT, Context, enter
from dcr_recipes.processes.learners import framework, learner_of
from dcr_recipes.processes.serving import control_of, runtime_names, site
from dcr_recipes.recorder import Recorder
from dcr_recipes.refitter import Refitter
from dcr_recipes.runtime.answers import RuntimeStatus
from dcr_recipes.runtime.engines import kind_of, kinds, oracle_name
from dcr_recipes.runtime.remote import RemoteRuntime
from dcr_recipes.trace.seconds import StageClock
from dcr_recipes.traffic import TrafficMeter
from dcr_recipes.verify import Verifier

if TYPE_CHECKING:
    from collections.abc import Mapping

_SAMPLED = 0.1
"""Share of an instance's tensors that verify=sampled compares."""
_GROUP_TIMEOUT = timedelta(hours=24)
"""Ranks wait for rank 0 while it waits for runtimes; whoever dies is noticed by the driver, not by gloo."""


def main(context: Context) -> None:
    """Train until the run's steps are done."""
    torch.set_num_threads(context.config.trainer.threads)
    with framework(context.config.trainer):
        _train(context)


def _train(context: Context) -> None:
    with observe.stage("process.join"):
        join_group(context)
    try:
        runtimes = {name: _runtime(context, name) for name in runtime_names(context.config)}
        with observe.stage("process.build"):
            training = _training(context)
        Loop(
            training,
            _refitter(context, training, runtimes),
            num_steps=context.config.steps,
            gathers=context.config.refit == "dense" or context.config.verify != "off",
            recorder=_recorder(context, runtimes) if context.index == 0 else None,
        ).run()
        dist.barrier()  # no rank stops to answer the coordinator while another still needs it
    finally:
        dist.destroy_process_group()


def join_group(context: Context) -> None:
    """Meet the other ranks of this start through a file: no port to choose, none to collide with."""
    if sys.platform == "linux":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # else gloo resolves the host's name
    place = context.folder.rendezvous / f"{os.environ.get(PARENT, '0')}-{context.incarnation}"
    world = context.config.trainer.ranks
    # Not by url: torch would cut the path at "#" or "?".
    store = dist.FileStore(str(place), world)  # type: ignore[attr-defined]  # torch exports it untyped
    store.set_timeout(_GROUP_TIMEOUT)
    dist.init_process_group("gloo", store=store, rank=context.index, world_size=world, timeout=_GROUP_TIMEOUT)


def _runtime(context: Context, name: str) -> RemoteRuntime:
    deadline_s = context.config.runtime.request_deadline_s
    return RemoteRuntime(Peers(context.folder.endpoints), name, timeout_s=deadline_s)


def _training(context: Context) -> GrpoTraining:
    settings = settings_of(context.config)
    config = context.config
    rollouts = over_http(
        Peers(context.folder.endpoints),
        runtime_names(config),
        settings,
        patience_s=config.runtime.patience_s,
        request_s=config.runtime.request_deadline_s,
        members=_members(context),
    )
    start = start_of(config)
    return assemble(
        start,
        learner_of(context, start),
        checkpoints=context.folder.checkpoints,
        run=context.run,
        rollouts=rollouts if context.index == 0 else None,
    )


def _refitter(context: Context, training: GrpoTraining, runtimes: "Mapping[str, RemoteRuntime]") -> Refitter:
    patience_s = context.config.runtime.patience_s
    if context.config.refit == "dense":
        return DenseRefitter(context.folder, runtimes, context.index, patience_s)
    refit = Refit.compose(
        context.config.refit_config(),
        site(context),
        source=training.learner.shards(),
        rank=context.index,
        trackers=context.folder.trackers / f"rank-{context.index}",
    )
    serving = {name: _Serving(context, runtime) for name, runtime in runtimes.items() if context.index == 0}
    resume = context.config.resume or context.incarnation > 1
    return DeltaRefitter(refit, resume, serving, patience_s, members=_members(context))


@dataclass(frozen=True, slots=True)
class _Serving:
    """A runtime as ``DeltaRefitter`` sees it."""

    context: Context
    runtime: RemoteRuntime

    def status(self) -> RuntimeStatus:
        return self.runtime.status()

    def admit(self) -> ReceiverReport:
        commit = self.context.config.commit
        coordinator = site(self.context).coordinator(commit)
        return coordinator.patiently(
            "admit", ReceiverReport, commit.restore_deadline_s, receiver=self.runtime.name
        )


def _recorder(context: Context, runtimes: "Mapping[str, RemoteRuntime]") -> Recorder:
    parts = _by_kind(context, runtimes)
    probers, verifiers = None, None
    if context.config.runtime.probe:
        probers = Probers([_prober(context, instances) for instances in parts])
    if context.config.verify != "off":
        verifiers = Verifiers([_verifier(context, i, instances) for i, instances in enumerate(parts)])
    return Recorder(context.folder, verifiers, _details(context), probers)


def _by_kind(
    context: Context, runtimes: "Mapping[str, RemoteRuntime]"
) -> "list[Mapping[str, RemoteRuntime]]":
    """Instances that can be compared with one another."""
    runtime = context.config.runtime
    kind = {name: kind_of(runtime, index) for index, name in enumerate(runtime_names(context.config))}
    return [{n: one for n, one in runtimes.items() if kind[n] == wanted} for wanted in kinds(runtime)]


def _prober(context: Context, instances: "Mapping[str, RemoteRuntime]") -> Prober:
    runtime = context.config.runtime
    prompt = PROMPT if runtime.name == "hf" else LONG_PROMPT
    return Prober(instances, prompt, runtime.patience_s, members=_members(context), away_s=_away_s(context))


def _verifier(context: Context, kind: int, instances: "Mapping[str, RemoteRuntime]") -> Verifier:
    sampled = _SAMPLED if context.config.verify == "sampled" else 1.0
    folder = context.folder.verify
    return Verifier(
        _runtime(context, oracle_name(kind)),
        instances,
        folder / str(kind) if kind else folder,
        deadline_s=context.config.runtime.patience_s,
        share=sampled,
        seed=context.config.seed,
        members=_members(context),
        away_s=_away_s(context),
    )


def _away_s(context: Context) -> float | None:
    """For how long an instance may be silent before it is left to the straggler policy; None: for ever."""
    commit = context.config.commit
    return commit.evict_after_s if commit.evicts and context.config.refit == "dcr" else None


def _members(context: Context) -> Members | None:
    """Whom to count on; None: everyone, as dense refits do."""
    config = context.config
    if config.refit == "dense":
        return None
    plane, run = control_of(context.folder, config).plane(), context.run
    return ReadMembers(lambda: plane.read(run), runtime_names(config))


def _details(context: Context) -> StepDetails:
    clock = StageClock(context.folder.trace) if context.config.trace else None
    if context.config.refit == "dense":
        return StepDetails(context.folder.change_rates, None, clock)
    traffic = TrafficMeter(context.folder.traffic)
    return StepDetails(context.folder.change_rates, site(context).archive, clock, traffic)


if __name__ == "__main__":
    enter("owner-{}", main)
