"""Numbers of the command line, for ``type=`` of argparse: each says what it accepts instead."""

from argparse import ArgumentTypeError


def count(word: str) -> int:
    """A whole number from 1."""
    return _whole(word, 1)


def count_or_none(word: str) -> int:
    """A whole number from 0."""
    return _whole(word, 0)


def positive(word: str) -> float:
    """A number above 0."""
    number = _number(word)
    if not 0 < number < float("inf"):
        raise ArgumentTypeError(f"{word} is not a number above 0")
    return number


def none_or_more(word: str) -> float:
    """A number from 0."""
    number = _number(word)
    if not 0 <= number < float("inf"):
        raise ArgumentTypeError(f"{word} is not a number from 0")
    return number


def share(word: str) -> float:
    """A number between 0 and 1, without these."""
    number = _number(word)
    if not 0 < number < 1:
        raise ArgumentTypeError(f"{word} is not a share between 0 and 1")
    return number


def chance(word: str) -> float:
    """A number from 0, below 1."""
    number = _number(word)
    if not 0 <= number < 1:
        raise ArgumentTypeError(f"{word} is not a chance from 0 to below 1")
    return number


def _whole(word: str, least: int) -> int:
    try:
        number = int(word)
    except ValueError:
        number = least - 1
    if number < least:
        raise ArgumentTypeError(f"{word} is not a whole number from {least}")
    return number


def _number(word: str) -> float:
    try:
        return float(word)
    except ValueError:
        raise ArgumentTypeError(f"{word} is not a number") from None
