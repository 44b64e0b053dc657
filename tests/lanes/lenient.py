"""Warnings of the frameworks that lanes drive are not this project's to fix: shown, never errors.

A lane's conftest imports both hooks by name.
"""

import warnings

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """For all that pytest does per test, and for what lies between two tests."""
    config.addinivalue_line("filterwarnings", "default")


@pytest.hookimpl(tryfirst=True)
def pytest_unconfigure() -> None:
    """For the end of the session, when pytest collects what is left.

    The filters that hold then were installed before any conftest could add a line of its own. pytest
    removes them again afterwards.
    """
    warnings.simplefilter("default")
