"""The hf runtime keeps the native loader contract, on small random models of two shapes."""

from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from omegaconf import OmegaConf
from transformers import AutoModelForCausalLM, LlamaConfig

import dcr_configs
from dcr.errors import ConfigError
from dcr.model import Catalogue, TensorSpec
from dcr.testing.native_loader_suite import LoaderCase, NativeLoaderContract
from dcr_adapters.hf.loader import HfLoader, build

PACKED = cast(
    "dict[str, list[str]]",
    OmegaConf.to_container(OmegaConf.load(Path(dcr_configs.__path__[0]) / "runtime" / "hf.yaml").packed),
)


def tiny_config(*, tied: bool = True, bias: bool = True) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=24,
        hidden_size=8,
        intermediate_size=12,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=tied,
        attention_bias=bias,
        mlp_bias=bias,
    )


def stock_model(config: LlamaConfig) -> Any:
    return AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()  # type: ignore[no-untyped-call]


def canonical(config: LlamaConfig) -> Catalogue:
    """What a trainer of the stock model publishes."""
    model = stock_model(config)
    first: dict[int, str] = {}
    aliases: dict[str, list[str]] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    for name, tensor in model.named_parameters(remove_duplicate=False):
        root = first.setdefault(id(tensor), name)
        shapes[root] = tuple(tensor.shape)
        aliases.setdefault(root, []).extend([name] if name != root else [])
    specs = tuple(TensorSpec(n, s, "bfloat16", tuple(aliases[n])) for n, s in shapes.items())
    return Catalogue("a" * 32, "0123456789abcdef0123456789abcdef", specs)


class TestHfRuntime(NativeLoaderContract):
    @pytest.fixture(params=[True, False], ids=["tied-bias", "untied"])
    def case(self, request: pytest.FixtureRequest) -> LoaderCase:
        config = tiny_config(tied=request.param, bias=request.param)
        return LoaderCase(partial(build, config, PACKED, "bfloat16"), canonical(config))


@pytest.mark.parametrize("bias", [True, False])
def test_packing_keeps_every_logit_bit(bias: bool) -> None:
    torch.manual_seed(3)
    stock = stock_model(tiny_config(bias=bias))
    with torch.no_grad():
        for parameter in stock.parameters():
            parameter.normal_(std=0.3)  # a fresh bias is zero and would prove nothing
    loader = build(tiny_config(bias=bias), PACKED, "bfloat16")
    loader.load(stock.state_dict().items())
    tokens = torch.randint(0, 24, (3, 9))
    with torch.no_grad():
        expected, got = stock(tokens).logits, loader.model(tokens).logits
    assert torch.equal(expected.view(torch.int16), got.view(torch.int16))


def test_siblings_share_one_parameter() -> None:
    loader = build(tiny_config(), PACKED, "bfloat16")
    resident = loader.resident()
    assert resident["model.layers.0.self_attn.qkv_proj.weight"].shape == (16, 8)
    assert resident["model.layers.1.mlp.gate_up_proj.bias"].shape == (24,)
    assert not any("q_proj" in name or "gate_proj" in name for name in resident)
    assert "model.rotary_emb.inv_freq" in resident  # a buffer that no checkpoint holds


def test_a_refit_reaches_forward() -> None:
    loader = build(tiny_config(), PACKED, "bfloat16")
    tokens = torch.arange(8)[None]
    with torch.no_grad():
        before = loader.model(tokens).logits
        loader.load([("model.layers.1.self_attn.v_proj.weight", torch.ones(4, 8, dtype=torch.bfloat16))])
        assert not torch.equal(before, loader.model(tokens).logits)


def test_unknown_names_and_wrong_shapes_are_refused() -> None:
    loader = build(tiny_config(), PACKED, "bfloat16")
    with pytest.raises(ValueError, match=r"unknown weight 'model\.norm\.wait'"):
        loader.load([("model.norm.wait", torch.zeros(8))])
    with pytest.raises(ValueError, match=r"model\.norm\.weight: shape \(1,\), expected \(8,\)"):
        loader.load([("model.norm.weight", torch.zeros(1, dtype=torch.bfloat16))])


def test_only_the_tied_head_is_skipped() -> None:
    assert build(tiny_config(), PACKED, "bfloat16").skips("lm_head.weight")
    assert not build(tiny_config(tied=False), PACKED, "bfloat16").skips("lm_head.weight")
    assert not build(tiny_config(), PACKED, "bfloat16").skips("model.embed_tokens.weight")


def test_tables_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ConfigError, match="exists already"):
        build(tiny_config(), {"o_proj": ["q_proj", "k_proj"]}, "bfloat16")
    with pytest.raises(ConfigError, match="differ in dtype or width"):
        build(tiny_config(), {"mixed": ["gate_proj", "down_proj"]}, "bfloat16")
    model = stock_model(tiny_config())
    model.model.layers[0].self_attn.k_proj.bias = None
    with pytest.raises(ConfigError, match="different parameters"):
        HfLoader(model, PACKED)


def test_build_names_what_is_wrong() -> None:
    with pytest.raises(ConfigError, match="does not exist"):
        build("/nowhere/config.json", PACKED, "bfloat16")
    with pytest.raises(ConfigError, match="no floating-point type"):
        build(tiny_config(), PACKED, "bf16")
