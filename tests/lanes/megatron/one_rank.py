"""The recipe's Megatron learner on one rank, against transformers; prints its findings as JSON.

usage: python -m tests.lanes.megatron.one_rank
"""

import json
import logging
import sys
import warnings
from typing import Any

import torch
import torch.distributed as dist

from dcr_adapters.megatron.cpu import on_cpu
from dcr_recipes.grpo.batch import Batch
from dcr_recipes.grpo.learner import group_terms
from dcr_recipes.grpo.loss import group_advantages, token_logprobs
from dcr_recipes.grpo.metrics import weights_digest
from dcr_recipes.grpo.policy import build_tiny
from dcr_recipes.grpo.settings import GrpoSettings, ModelSizes
from dcr_recipes.grpo.shard_state import state_digest
from dcr_recipes.grpo.tasks import random_tokens
from dcr_recipes.grpo.training import Start

SETTINGS = GrpoSettings(lr=1e-3)
SIZES = ModelSizes()


def batch(step: int) -> Batch:
    """Random experience."""
    generator = torch.Generator().manual_seed(step)
    shape = (SETTINGS.num_prompts, SETTINGS.group_size, SETTINGS.response_tokens)
    tokens = torch.randint(0, SIZES.vocabulary, shape, generator=generator)
    rewards = torch.randn(shape[:2], generator=generator).double()
    prompts = tuple(random_tokens(SETTINGS, SIZES.vocabulary).source.prompts(step))
    mask = torch.ones(shape, dtype=torch.bool)
    return Batch(prompts, tokens, torch.full(shape, -6.2), mask, rewards, group_advantages(rewards))


def reference(model: Any, given: Batch) -> tuple[float, float]:
    """Loss and gradient norm of the same step, by transformers in BF16."""
    loss = 0.0
    for index in range(SETTINGS.num_prompts):
        tokens = given.tokens[index]
        logits = model(input_ids=given.sequences(index), use_cache=False).logits
        picked = logits[:, -tokens.shape[1] - 1 : -1]
        terms = group_terms(token_logprobs(picked, tokens, 1.0), given, index, SETTINGS)
        torch.autograd.backward(terms.loss / int(given.mask.sum()))
        loss += float(terms.loss)
    squares = [(parameter.grad.float() ** 2).sum() for parameter in model.parameters()]
    return loss, float(torch.stack(squares).sum().sqrt())


def main() -> None:
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    with on_cpu():
        from dcr_recipes.megatron.build import Degrees, megatron_learner

        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
        start = Start(build_tiny(SIZES, 0), random_tokens(SETTINGS, SIZES.vocabulary), SETTINGS)
        learner = megatron_learner(start, Degrees())
        masters = [each for name, each in learner.capture().items() if name.endswith("/master")]
        begins = torch.cat([each.reshape(-1) for each in masters]).sort().values
        weights = torch.cat([each.reshape(-1) for each in start.model.parameters()]).sort().values
        same = bool(torch.equal(begins, weights)), not torch.equal(weights, weights.bfloat16().float())
        theirs = reference(start.model.to(torch.bfloat16), batch(1))
        learned = learner.learn(batch(1))
        saved = {name: tensor.clone() for name, tensor in learner.capture().items()}
        found = []
        for between in (2, 3):
            learner.learn(batch(between))
            found.append([state_digest(learner.capture()), weights_digest(learner.gather())])
            learner.install(saved)
            found.append([state_digest(learner.capture()), state_digest(saved)])
        learner.learn(batch(2))
        found.append([state_digest(learner.capture()), weights_digest(learner.gather())])
    ours = float(learned.sums[0]), learned.grad_norm
    sys.stdout.write("\n" + json.dumps({"ours": ours, "theirs": theirs, "found": found, "same": same}))


if __name__ == "__main__":
    main()
