"""Numbers on the command line: what is refused is named, with what is accepted, before anything runs."""

from argparse import ArgumentTypeError
from collections.abc import Callable

import pytest

from dcr_recipes.cli import main
from dcr_recipes.commands.numbers import chance, count, count_or_none, none_or_more, positive, share


@pytest.mark.parametrize(
    ("read", "words", "numbers"),
    [
        (count, "1 7", [1, 7]),
        (count_or_none, "0 7", [0, 7]),
        (positive, "0.5 1e3", [0.5, 1000.0]),
        (none_or_more, "0 2.5", [0.0, 2.5]),
        (share, "0.01 0.99", [0.01, 0.99]),
        (chance, "0 0.5", [0.0, 0.5]),
    ],
)
def test_they_are_read(read: Callable[[str], float], words: str, numbers: list[float]) -> None:
    assert [read(word) for word in words.split()] == numbers


@pytest.mark.parametrize(
    ("read", "words"),
    [
        (count, "0 -1 1.5 x"),
        (count_or_none, "-1 0.5 x"),
        (positive, "0 -1 nan inf x"),
        (none_or_more, "-0.1 nan inf x"),
        (share, "0 1 nan x"),
        (chance, "-0.1 1 nan x"),
    ],
)
def test_others_are_refused(read: Callable[[str], float], words: str) -> None:
    for word in words.split():
        with pytest.raises(ArgumentTypeError, match=f"^{word} is not a "):
            read(word)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("bench refit --nodes x", "argument --nodes: x is not a whole number from 1"),
        ("bench refit --link-loss 1", "argument --link-loss: 1 is not a chance from 0 to below 1"),
        ("bench refit --references -1", "argument --references: -1 is not a whole number from 0"),
        ("bench scan --mib 0", "argument --mib: 0 is not a whole number from 1"),
        ("chaos --pause -1", "argument --pause: -1 is not a number above 0"),
    ],
)
def test_commands_name_the_argument(words: str, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(words.split())
    assert told in capsys.readouterr().err
