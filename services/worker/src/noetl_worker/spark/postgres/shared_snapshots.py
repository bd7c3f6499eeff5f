"""One snapshot for all that a task reads by one credential, held open while the task runs."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

from msgspec import Struct, structs

from noetl_contracts import codec
from noetl_worker.spark.postgres import read_plan
from noetl_worker.spark.postgres.read_plan import ReadPlan
from noetl_worker.spark.postgres.read_request import ReadRequest
from noetl_worker.spark.postgres.server_connection import ArrowSession, open_arrow_session
from noetl_worker.spark.tables import store_access
from noetl_worker.spark.tables.store_access import StoreAddress
from noetl_worker.sql import queries, server_names

_QUERIES = queries.load_queries(__package__, "shared_snapshots")


class PlannedReads(Struct, frozen=True, kw_only=True):
    """The options of a task's reads with their plans; each of `moving` may run only once."""

    options: dict[str, dict[str, str]]
    moving: frozenset[str]


class _SnapshotKeeper:
    """A connection that shows others what it sees, as long as it is open."""

    def __init__(self, session: ArrowSession, snapshot: str | None, server: str) -> None:
        self._session = session
        self._server = server
        session.begin_reading(snapshot)
        session.run_statement(_QUERIES["stay_idle"])
        self._snapshot = snapshot or session.fetch_rows(_QUERIES["export_snapshot"])[0]["snapshot"]

    def plan_input(self, options: Mapping[str, str]) -> ReadPlan:
        """Plan how an input is read; raises `SparkRefusal`."""
        about = _describe_input(options, self._server)
        request = codec.decode_as(options["request"].encode(), ReadRequest)
        return read_plan.plan_read(self._session, request, snapshot=self._snapshot, about=about)


@contextmanager
def plan_reads(
    reads: Mapping[str, Mapping[str, str]], home: StoreAddress
) -> Iterator[PlannedReads]:
    """Yield the options of reads with their plans, whose snapshots end with the block.

    Raises `SparkRefusal`.
    """
    keepers: dict[str, _SnapshotKeeper] = {}
    options_by_read: dict[str, dict[str, str]] = {}
    moving_reads: set[str] = set()
    with ExitStack() as stack:
        for name, options in reads.items():
            credential = options["credential"]
            keeper = keepers.get(credential)
            if keeper is None:
                keeper = keepers[credential] = stack.enter_context(_open_keeper(options, home))
            plan = keeper.plan_input(options)
            options_by_read[name] = {**options, "plan": read_plan.encode_plan(plan)}
            if not plan.is_steady:
                moving_reads.add(name)
        yield PlannedReads(options=options_by_read, moving=frozenset(moving_reads))


def narrow_read(options: Mapping[str, str], names: frozenset[str]) -> dict[str, str]:
    """Return the options of a planned read that selects fewer columns.

    Of no columns the first stays: a row has at least one.
    """
    plan = read_plan.decode_plan(options["plan"])
    columns = [column for column in plan.columns if column.name in names] or plan.columns[:1]
    narrow = structs.replace(plan, columns=columns)
    return {**options, "plan": read_plan.encode_plan(narrow)}


@contextmanager
def _open_keeper(options: Mapping[str, str], home: StoreAddress) -> Iterator[_SnapshotKeeper]:
    credential = options["credential"]
    fields = store_access.open_credential_fields(home, credential)
    server = server_names.describe_server(fields)
    about = _describe_input(options, server)
    with open_arrow_session(fields, credential=credential, about=about) as session:
        yield _SnapshotKeeper(session, options.get("snapshot"), server)


def _describe_input(options: Mapping[str, Any], server: str) -> str:
    """Write what an error's message begins with: the input, its table, and where it is."""
    request = codec.decode_as(options["request"].encode(), ReadRequest)
    table = "" if request.table is None else f"table '{'.'.join(request.table)}'"
    source_text = ", ".join(filter(None, (table, f"credential '{options['credential']}'", server)))
    return f"input '{request.name}' ({source_text})"
