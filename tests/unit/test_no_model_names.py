"""Names of models and of their layers are data of checkpoints, never part of core or adapters."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NAMES = re.compile(
    r"q_proj|k_proj|v_proj|o_proj|qkv_proj|gate_up|down_proj|lm_head|embed_tokens|self_attn|linear_qkv|linear_fc"
    r"|layernorm\.|llama|qwen|deepseek|nemotron|smollm|mixtral",
    re.IGNORECASE,
)


@pytest.mark.parametrize("folder", ["core/dcr", "adapters/dcr_adapters"])
def test_none_is_in_the_code(folder: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in sorted((ROOT / folder).rglob("*.py"))
        if "testing" not in path.parts
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if NAMES.search(line)
    ]
    assert not found, "\n".join(found)


def test_the_pattern_bites() -> None:
    assert NAMES.search('if name.endswith("mlp.down_proj.weight"):')
