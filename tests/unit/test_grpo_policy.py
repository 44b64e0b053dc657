"""The tiny policy, and this rank's state in and out of it."""

from typing import Any, cast

import pytest
import torch

from dcr.errors import IntegrityError
from dcr_recipes.grpo.policy import Policy, build_tiny, repeated_layers
from dcr_recipes.grpo.settings import ModelSizes
from dcr_recipes.grpo.shard_state import capture, install, state_digest


def _policy() -> Policy:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Linear(5, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=False)
    return Policy(model, optimizer, cast("Any", None))


def _train(policy: Policy, num_steps: int) -> None:
    for _ in range(num_steps):
        loss = policy.model(torch.randn(4, 3)).square().sum()
        torch.autograd.backward(loss)
        policy.optimizer.step()
        policy.optimizer.zero_grad()


def _copied(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {key: tensor.clone() for key, tensor in state.items()}


def test_the_same_seed_builds_the_same_bits_and_leaves_the_random_state_alone() -> None:
    before = torch.get_rng_state()
    first, again, other = (build_tiny(ModelSizes(), seed).state_dict() for seed in (3, 3, 4))
    assert torch.equal(before, torch.get_rng_state())
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["model.embed_tokens.weight"], other["model.embed_tokens.weight"])


def test_a_restored_policy_goes_on_as_if_it_had_never_stopped() -> None:
    whole, parts = _policy(), _policy()
    torch.manual_seed(1)
    _train(whole, 5)
    torch.manual_seed(1)
    _train(parts, 2)
    state = _copied(capture(parts))
    _train(parts, 4)
    install(parts, state)
    _train(parts, 3)
    end, expected = capture(parts), capture(whole)
    assert end.keys() == expected.keys()
    assert all(torch.equal(end[key], expected[key]) for key in expected)


def test_a_state_from_before_the_first_step_clears_the_optimizer() -> None:
    policy = _policy()
    state = _copied(capture(policy))
    _train(policy, 2)
    install(policy, state)
    assert capture(policy).keys() == state.keys()
    _train(policy, 1)


def test_a_capture_costs_no_memory_and_its_digest_follows_the_weights() -> None:
    policy = _policy()
    _train(policy, 1)
    state = capture(policy)
    held = [*policy.model.parameters(), *(t for s in policy.optimizer.state.values() for t in s.values())]
    owned = {tensor.data_ptr() for tensor in held}
    assert {tensor.data_ptr() for key, tensor in state.items() if key != "rng"} == owned
    before = state_digest(state)
    _train(policy, 3)
    now = capture(policy)
    assert state_digest({**state, "rng": now["rng"]}) == state_digest(now) != before


def test_layers_are_found_by_structure() -> None:
    from torch import nn

    expert = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])
    layers = nn.ModuleList([nn.Sequential(nn.Linear(2, 2), expert), nn.Linear(2, 2), nn.ReLU()])
    model = nn.ModuleDict({"inner": nn.ModuleDict({"anything": layers}), "head": nn.Linear(2, 2)})
    assert repeated_layers(model) == [layers[0], layers[1]]


@pytest.mark.parametrize("wrong", [None, torch.zeros(5, 2), torch.zeros(5, 3, dtype=torch.float64)])
def test_another_sharding_is_refused(wrong: torch.Tensor | None) -> None:
    policy = _policy()
    state = {key: value for key, value in capture(policy).items() if key != "model/0.weight"}
    if wrong is not None:
        state["model/0.weight"] = wrong
    with pytest.raises(IntegrityError, match=r"model/0.weight: expected torch\.float32 \(5, 3\)"):
        install(policy, state)
