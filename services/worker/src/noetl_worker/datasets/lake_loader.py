"""Loads what reads and writes tables of lakes when it is first needed: few tasks do."""

import importlib
from typing import Any

from noetl_worker.datasets.problems import DatasetProblem


def load_delta() -> Any:
    """Load `noetl_worker.datasets.delta_table`; raises `DatasetProblem`."""
    return _load_module("noetl_worker.datasets.delta_table", "Delta")


def load_iceberg() -> Any:
    """Load `noetl_worker.datasets.iceberg_table`; raises `DatasetProblem`."""
    return _load_module("noetl_worker.datasets.iceberg_table", "Iceberg")


def _load_module(module: str, library_name: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as problem:
        text = (
            f"{library_name} is not installed here: install noetl-worker[lake], "
            "or run this pool's workers from the image worker-spark"
        )
        raise DatasetProblem("config", text) from problem
