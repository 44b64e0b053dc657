"""Sums in words: prompts, their tokens, and how responses are judged."""

from pathlib import Path

import pytest
import torch
from tests.integration.checkpoints import END, write_tokenizer
from transformers import PreTrainedTokenizerFast

from dcr_recipes.grpo.arithmetic import ArithmeticPrompts, LastInteger, encode, judge
from dcr_recipes.grpo.sampler import Prompt


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> PreTrainedTokenizerFast:
    return write_tokenizer(Path(tmp_path_factory.mktemp("tokenizer")))


def test_prompts_are_sums_of_two_digits_that_seed_and_step_decide(tokenizer: PreTrainedTokenizerFast) -> None:
    source = ArithmeticPrompts(5, 4, tokenizer)
    texts = []
    for step in range(1, 6):
        assert source.prompts(step) == ArithmeticPrompts(5, 4, tokenizer).prompts(step)
        for prompt in source.prompts(step):
            text = str(tokenizer.decode(list(prompt.ids)))
            words = text.removeprefix("user: What is ").split("?")[0].split()
            assert text == f"user: What is {' '.join(words)}? Answer with the number only.{END}assistant: "
            left, operator, right = words
            assert 0 <= int(left) <= 9 >= int(right) >= 0
            sign = {"+": 1, "-": -1}[operator]
            assert int(prompt.answer) == int(left) + sign * int(right)
            texts.append(text)
    assert len(set(texts)) > 10
    assert source.prompts(1) != ArithmeticPrompts(6, 4, tokenizer).prompts(1)


def test_without_a_chat_template_the_question_stands_alone(tokenizer: PreTrainedTokenizerFast) -> None:
    plain = PreTrainedTokenizerFast(tokenizer_object=tokenizer.backend_tokenizer, eos_token=END)  # type: ignore[no-untyped-call]
    assert plain.decode(list(encode(plain, "What is 1 + 2?"))) == "What is 1 + 2?\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("7", 1.2),
        (" 7\n", 1.2),
        ("07", 1.2),
        ("3 + 4 = 7", 1 + 0.2 / 5),
        ("7 or 8", 0.2 / 4),
        ("8", 0.2),
        ("-7", 0.2),
        ("seven", 0.0),
        ("", 0.0),
    ],
)
def test_the_last_integer_is_the_answer_and_brevity_is_worth_a_little(text: str, expected: float) -> None:
    assert judge(text, "7") == pytest.approx(expected)
    assert 0 <= judge(text, "7") <= 1.2


def test_what_comes_after_the_end_of_a_response_does_not_count(tokenizer: PreTrainedTokenizerFast) -> None:
    rows = [tokenizer(f"7{END}8")["input_ids"], tokenizer(f"12{END}")["input_ids"]]
    tokens = torch.full((2, 6), tokenizer("9")["input_ids"][0])
    for row, ids in zip(tokens, rows, strict=True):
        row[: len(ids)] = torch.tensor(ids)
    scores = LastInteger(tokenizer, tokenizer.eos_token_id).score(Prompt((), "7"), tokens)
    assert scores.dtype == torch.float64
    assert scores.tolist() == pytest.approx([1.2, 0.2])
