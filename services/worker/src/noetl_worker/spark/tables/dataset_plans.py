"""Inputs and targets of a task that are datasets, as they travel to executors."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from msgspec import Struct

from noetl_playbook.model.datasets import DatasetSink
from noetl_worker.datasets.address import DatasetAddress
from noetl_worker.datasets.read_plan import ReadPlan
from noetl_worker.spark.tables.store_access import StoreAddress


class FileInput(Struct, frozen=True, kw_only=True):
    """An input of files that executors read; rows that do not fit are told under `rejects`.

    No secret is in it: executors open the credential by its name.
    """

    home: StoreAddress
    plan: ReadPlan
    rejects: str
    tasks: int = 8


class DatasetTarget(Struct, frozen=True, kw_only=True):
    """A dataset that a task's rows go to.

    `attempt` is a token of this run of the task: no other run writes the same files. `catalog` are
    the arguments of a connection to the catalog of an Iceberg table; executors are not given it.
    """

    home: StoreAddress
    address: DatasetAddress
    sink: DatasetSink
    identity: str
    attempt: str
    now: datetime
    catalog: Mapping[str, Any] | None = None
