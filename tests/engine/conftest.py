"""Marks what the engine of 0.1.0 does otherwise."""

from tests.engine import old_engine


def pytest_collection_modifyitems(items):
    old_engine.mark(items)
