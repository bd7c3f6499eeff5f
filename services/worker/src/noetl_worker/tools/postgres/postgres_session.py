"""One connection to a target database, and the statements prepared on it.

A statement keeps its name on the server, which parses it once and plans it a few times. The server
checks a named statement at every run: when a table, a view or the search path has changed, it
reports so before it returns a row of other types. Then the statement is prepared afresh and run
again, where nothing has been done yet. Without a name there is no such check, so a statement
without one is described anew at every run, in a transaction, which keeps its tables as they are.
"""

import re
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, nullcontext
from itertools import islice
from typing import TYPE_CHECKING, Any

import asyncpg
import msgspec
from msgspec import Struct, structs

from noetl_chassis import identity
from noetl_storage.process.lazy_import import LazyModule
from noetl_worker.domain.failures import ToolFailure, build_error, check_column_names
from noetl_worker.sql import queries
from noetl_worker.tools.postgres.transactions import hold_transaction
from noetl_worker.tools.postgres.value_forms import read_json
from noetl_worker.tools.postgres.value_types import (
    Convert,
    UnfitValue,
    bind_values,
    can_fail_to_read,
    find_reader,
    get_binder,
    is_derived_type,
)

if TYPE_CHECKING:
    from asyncpg.prepared_stmt import PreparedStatement

    from noetl_worker.tools.postgres import arrow_types
else:
    arrow_types = LazyModule("noetl_worker.tools.postgres.arrow_types")

_QUERIES = queries.load_queries(__package__, "postgres_session")
_PLANS_MAX = 64
_PRUNING_S = 3600.0
# The server keeps a named statement's parameters of the types that they had, and converts them when
# a column has another one since. So a statement's parameters are looked at again, this often.
PARAMETERS_TRUSTED_S = 1.0
# Parsed and planned at every run, in one go with it.
_NAMELESS = ""
# Another server answers than the one that prepared a statement, as behind a pooler of transactions,
# or somebody's statement has made this one forget it.
_UNKNOWN = (
    asyncpg.exceptions.InvalidSQLStatementNameError,
    asyncpg.exceptions.DuplicatePreparedStatementError,
)
# What a statement that was prepared earlier says when types have changed since: of its columns, of
# its parameters, or of a composite's attributes.
_STALE = (
    asyncpg.exceptions.FeatureNotSupportedError,
    asyncpg.exceptions.OutdatedSchemaCacheError,
    asyncpg.exceptions.DatatypeMismatchError,
    asyncpg.exceptions.UndefinedFunctionError,
    asyncpg.exceptions.UndefinedObjectError,
    asyncpg.exceptions.CannotCoerceError,
    asyncpg.exceptions.InternalServerError,
)
# What the client raises when it cannot read a value.
UNREADABLE = (
    *(ValueError, TypeError, OverflowError, BufferError),
    asyncpg.UnsupportedClientFeatureError,
)
# Statements that run the same inside a transaction. A procedure may commit by itself.
_TRANSACTIONAL = re.compile(
    r"(?:\s+|--[^\n]*\n|/\*.*?\*/)*(?:select|insert|update|delete|merge|with|values|table)\b",
    re.IGNORECASE | re.DOTALL,
)


class StatementPlan(Struct, frozen=True, kw_only=True):
    """A prepared statement and how its values are bound and read.

    `doubtful` are the columns whose values the client may fail to read. `is_derived_type` tells
    that the client remembers a composite's attributes, which may have changed.
    """

    prepared: "PreparedStatement[Any]"
    binders: tuple[Convert, ...]
    parameter_types: tuple[str, ...]
    columns: tuple[str, ...]
    readers: tuple[tuple[str, Convert], ...]
    types: tuple[str, ...]
    doubtful: tuple[str, ...] = ()
    is_derived: bool = False


class StatementRows(Struct, frozen=True, kw_only=True):
    """What one statement gave."""

    rows: list[dict[str, Any]]
    columns: tuple[str, ...]
    types: tuple[str, ...]
    message: str


class StaleStatement(Exception):  # noqa: N818 - it says what the statement is
    """Types have changed since a statement was prepared; its transaction has to be rolled back."""

    def __init__(self, problem: Exception) -> None:
        super().__init__(str(problem))

    def build_failure(self) -> ToolFailure:
        """Return the failure of a transaction that cannot run again here."""
        text = (
            "the type of a column or parameter has changed since the statement was prepared "
            f"({self}): its transaction was rolled back, run it again"
        )
        return ToolFailure(build_error("schema", text, source="postgres", retryable=True))


def keep_json_as_text(plan: StatementPlan, columns: Iterable[str]) -> StatementPlan:
    """Leave JSON columns the texts that they are, for a target that reads such a text."""
    names = set(columns)
    readers = tuple(
        (name, reader)
        for name, reader in plan.readers
        if reader is not read_json or name not in names
    )
    return structs.replace(plan, readers=readers)


def build_rows(
    records: list[Any], plan: StatementPlan, *, rows_before: int = 0
) -> list[dict[str, Any]]:
    """Show records as rows of JSON-able values.

    Raises `ToolFailure` that names the column and the row, counted from 1, of a value that has no
    JSON form.
    """
    rows = [dict(record.items()) for record in records]
    for name, reader in plan.readers:
        at = 0
        try:
            for at, row in enumerate(rows):  # noqa: B007 - it is told when a value cannot be read
                if row[name] is not None:
                    row[name] = reader(row[name])
        except (
            ValueError,
            TypeError,
            OverflowError,
            RecursionError,
            msgspec.MsgspecError,
        ) as problem:
            text = (
                f"column '{name}', row {rows_before + at + 1}: the value has no JSON form "
                f"({problem}): cast it to text in the query"
            )
            raise ToolFailure(build_error("schema", text, source="postgres")) from problem
    return rows


def build_unread_failure(plan: StatementPlan, problem: Exception) -> ToolFailure:
    """Tell which columns hold a value that the client cannot read."""
    columns = plan.doubtful or plan.columns
    names = ", ".join(f"'{name}'" for name in columns)
    subject = f"column {names}" if len(columns) == 1 else f"one of the columns {names}"
    text = f"{subject} holds a value that cannot be read ({problem}): cast it to text in the query"
    return ToolFailure(build_error("schema", text, source="postgres"))


@contextmanager
def note_refused_text(
    texts_by_column: Mapping[str, list[str | None]], rows_before: int | None
) -> Iterator[None]:
    """Note the column, and the row counted from 1, of a text that the block cannot cast.

    The server quotes the text alone where a list of texts is cast. Without `rows_before` the row
    is left out.
    """
    try:
        yield
    except asyncpg.DataError as problem:
        message = str(problem)
        places = (
            (name, place)
            for name, texts in texts_by_column.items()
            for place, text in enumerate(texts, start=1)
            if text and f'"{text}"' in message
        )
        for name, place in islice(places, 1):
            row = "" if rows_before is None else f", row {rows_before + place}"
            problem.add_note(f"column '{name}'{row}")
        raise


class PostgresSession:
    """One connection and the statements prepared on it."""

    def __init__(self, connection: "asyncpg.Connection[Any]") -> None:
        self.connection = connection
        self._plan_by_text: dict[str, StatementPlan] = {}
        self._checked_s_by_text: dict[str, float] = {}
        self._is_naming = True
        self._pruned_s: float | None = None

    def take_pruning_turn(self) -> bool:
        """Tell whether old markers are to be removed now: at first, and again after an hour."""
        now_s = time.monotonic()
        is_due = self._pruned_s is None or now_s - self._pruned_s >= _PRUNING_S
        if is_due:
            self._pruned_s = now_s
        return is_due

    async def run_statement(self, text: str, values: list[Any]) -> StatementRows:
        """Execute one statement: one round trip once it is prepared.

        Raises `ToolFailure` for a value that cannot be read, with nothing done, and
        `StaleStatement` inside a transaction, which then has to be rolled back.
        """
        was_known = text in self._plan_by_text
        try:
            return await self._run_planned(text, values)
        except UnfitValue:
            if not was_known:
                raise
            # Nothing has been sent: the value may fit the type that the parameter has now.
            self.forget_plan(text)
            return await self._run_planned(text, values)
        except (*_STALE, *_UNKNOWN) as problem:
            is_unknown = isinstance(problem, _UNKNOWN)
            self._is_naming = self._is_naming and not is_unknown
            self.forget_plan(text)
            is_outdated = isinstance(problem, asyncpg.exceptions.OutdatedSchemaCacheError)
            if not (was_known or is_unknown or is_outdated):
                raise
            if self.connection.is_in_transaction():
                raise StaleStatement(problem) from problem
            return await self._run_planned(text, values)

    async def _run_planned(self, text: str, values: list[Any]) -> StatementRows:
        if not self._is_naming:
            async with self._ensure_transaction(text):
                return await self._fetch_rows(await self.describe_statement(text), values)
        plan = self._find_trusted_plan(text) or await self.get_plan(text)
        if not plan.doubtful:
            return await self._fetch_rows(plan, values)
        # What cannot be read must not be committed.
        async with self._ensure_transaction(text):
            return await self._fetch_rows(plan, values)

    async def _fetch_rows(self, plan: StatementPlan, values: list[Any]) -> StatementRows:
        bound = bind_values(values, plan.binders, plan.parameter_types)
        try:
            records = await plan.prepared.fetch(*bound)
        except UNREADABLE as problem:
            raise build_unread_failure(plan, problem) from problem
        return StatementRows(
            rows=build_rows(records, plan),
            columns=plan.columns,
            types=arrow_types.list_row_types(plan.types, records),
            message=plan.prepared.get_statusmsg() or "",
        )

    @asynccontextmanager
    async def _ensure_transaction(self, text: str) -> AsyncIterator[None]:
        """Run the block in a transaction, where there is none and the statement bears one."""
        is_inside = self.connection.is_in_transaction() or _TRANSACTIONAL.match(text) is None
        async with nullcontext() if is_inside else hold_transaction(self.connection):
            yield

    async def run_batch(self, text: str, batch: list[list[Any]]) -> None:
        """Run a statement without rows for every list of bound values, all or none of them."""
        if self._is_naming:
            await (await self.get_plan(text)).prepared.executemany(batch)
            return
        async with self._ensure_transaction(text):
            await (await self.describe_statement(text)).prepared.executemany(batch)

    async def get_plan(self, text: str) -> StatementPlan:
        """Return a statement's plan, preparing it when it is new to the connection.

        It tells what the statement is like. Its types may be those of an earlier run.
        """
        if not self._is_naming:
            return await self._describe_plan(text, _NAMELESS)
        statement_plan = self._find_plan(text)
        if statement_plan is not None and await self._is_current(text, statement_plan):
            return statement_plan
        return await self._prepare_plan(text)

    def _find_trusted_plan(self, text: str) -> StatementPlan | None:
        """Return a plan whose parameters need no look."""
        plan = self._find_plan(text)
        if plan is None or not plan.parameter_types:
            return plan
        age_s = time.monotonic() - self._checked_s_by_text[text]
        return plan if age_s < PARAMETERS_TRUSTED_S else None

    async def _is_current(self, text: str, plan: StatementPlan) -> bool:
        """Tell whether a statement's parameters have the types that they had."""
        if self._find_trusted_plan(text) is not None:
            return True
        self._checked_s_by_text[text] = time.monotonic()
        current_plan = await self.describe_statement(text)
        return current_plan.prepared.get_parameters() == plan.prepared.get_parameters()

    async def describe_statement(self, text: str) -> StatementPlan:
        """Return a plan with the types of now, to be run before the transaction ends.

        The transaction has locked the statement's tables, so their types stay what they are.
        """
        return await self._describe_plan(text, _NAMELESS)

    async def _prepare_plan(self, text: str) -> StatementPlan:
        # No other client of the server has these names. They are asked for: without a cache of its
        # own the client would give none.
        plan = await self._describe_plan(text, identity.mint_token())
        if plan.is_derived:
            return plan
        while len(self._plan_by_text) >= _PLANS_MAX:
            self.forget_plan(next(iter(self._plan_by_text)))
        self._plan_by_text[text] = plan
        self._checked_s_by_text[text] = time.monotonic()
        return plan

    async def _describe_plan(self, text: str, name: str) -> StatementPlan:
        try:
            prepared_statement = await self.connection.prepare(text, name=name)
            if _is_derived(prepared_statement):
                # The client keeps a composite's attributes for ever.
                await self.connection.reload_schema_state()
                prepared_statement = await self.connection.prepare(
                    text, name=name and identity.mint_token()
                )
        except asyncpg.UnsupportedClientFeatureError as problem:
            text = f"a column or parameter is of a type that cannot be read: {problem}: cast it"
            raise ToolFailure(build_error("schema", text, source="postgres")) from problem
        encoding = self.connection.get_settings().server_encoding
        return _build_plan(prepared_statement, is_checked=encoding != "SQL_ASCII")

    def _find_plan(self, text: str) -> StatementPlan | None:
        """Find a plan, and keep it longer than those whose text comes once, as claims' do."""
        plan = self._plan_by_text.pop(text, None)
        if plan is not None:
            self._plan_by_text[text] = plan
        return plan

    def forget_plan(self, text: str) -> None:
        """Drop a plan that may be stale."""
        self._plan_by_text.pop(text, None)
        self._checked_s_by_text.pop(text, None)

    def forget_plans(self) -> None:
        """Drop every plan, as each may be stale."""
        self._plan_by_text.clear()
        self._checked_s_by_text.clear()

    async def reset_session(self) -> None:
        """Forget what statements may have left on the session."""
        if self.connection.is_in_transaction():
            await self.connection.execute(_QUERIES["roll_back"])
        self.forget_plans()
        await self.connection.execute(_QUERIES["forget"])

    async def limit_statements(self, seconds: float) -> None:
        """Bound every later statement until the session is reset."""
        await self.connection.fetchval(_QUERIES["limit_statements"], f"{seconds * 1000:.0f}")

    async def end_backend(self, process: int) -> bool:
        """End the server's process of another session of this user; False when it was gone."""
        return bool(await self.connection.fetchval(_QUERIES["end_backend"], process))


def _is_derived(prepared_statement: "PreparedStatement[Any]") -> bool:
    types = [column.type for column in prepared_statement.get_attributes()]
    return any(is_derived_type(item) for item in (*types, *prepared_statement.get_parameters()))


def _build_plan(prepared_statement: "PreparedStatement[Any]", *, is_checked: bool) -> StatementPlan:
    types = tuple(parameter.name for parameter in prepared_statement.get_parameters())
    attributes = prepared_statement.get_attributes()
    columns = tuple(column.name for column in attributes)
    check_column_names(columns, source="postgres")
    readers = {column.name: find_reader(column.type.name) for column in attributes}
    return StatementPlan(
        prepared=prepared_statement,
        binders=tuple(get_binder(name) for name in types),
        parameter_types=types,
        columns=columns,
        readers=tuple((name, reader) for name, reader in readers.items() if reader is not None),
        types=arrow_types.list_column_types(attributes),
        doubtful=tuple(
            column.name
            for column in attributes
            if can_fail_to_read(column.type, is_checked=is_checked)
        ),
        is_derived=_is_derived(prepared_statement),
    )
