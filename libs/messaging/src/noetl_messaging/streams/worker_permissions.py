"""The broker's permissions of a worker: its pool's queues, and reports in its own name."""

from collections.abc import Iterator
from urllib.parse import unquote, urlsplit

from msgspec import Struct

from noetl_contracts import subjects
from noetl_contracts.commands import worker_pools
from noetl_contracts.commands.command_work import DEFAULT_POOL
from noetl_messaging.streams import topology
from noetl_messaging.streams.topology import build_worker_consumer

_INDENT = "  "


class WorkerUser(Struct, frozen=True, kw_only=True):
    """A user of the broker for the workers of a pool.

    `tenants` have their own share of the pool; with `only_tenants` the user gets their commands
    alone, and reports on nobody else's.
    """

    name: str
    pool: str = DEFAULT_POOL
    tenants: tuple[str, ...] = ()
    only_tenants: bool = False


def find_user(url: str) -> str | None:
    """Return the user of a broker's address; None without one that a subject can name."""
    user = unquote(urlsplit(url).username or "")
    return user if subjects.is_subject_token(user) else None


def list_published_subjects(user: WorkerUser) -> list[str]:
    """List what the user may publish."""
    consumers = list(_iterate_consumers(user))
    return [
        *(
            f"{subjects.INGEST}.*.{tenant}.*.{subjects.REPORTS}.{user.pool}.{user.name}"
            for tenant in _list_tenant_tokens(user)
        ),
        *(
            subjects.build_dead_letter_subject(topology.COMMANDS, consumer)
            for consumer in consumers
        ),
        f"{subjects.WORKERS}.{user.pool}.{user.name}",
        f"{subjects.HELD}.{user.pool}.{user.name}",
        f"{subjects.PROGRESS}.*",
        *(f"{subjects.LIMITS}.{tenant}.>" for tenant in _list_tenant_tokens(user)),
        "$JS.API.INFO",
        f"$JS.API.STREAM.INFO.{topology.COMMANDS}",
        f"$JS.API.STREAM.MSG.GET.{topology.LIMITS}",
        *(f"$JS.API.CONSUMER.INFO.{topology.COMMANDS}.{consumer}" for consumer in consumers),
        *(f"$JS.API.CONSUMER.MSG.NEXT.{topology.COMMANDS}.{consumer}" for consumer in consumers),
        *(f"$JS.ACK.{topology.COMMANDS}.{consumer}.>" for consumer in consumers),
    ]


def list_heard_subjects(user: WorkerUser) -> list[str]:
    """List what the user may subscribe to; offers may be any tenant's."""
    offers = [f"{subjects.OFFERS}.to.{user.name}.*", f"{subjects.OFFERS}.granted.>"]
    return [
        f"_INBOX_{user.name}.>",
        f"{subjects.STOPS}.*",
        f"{subjects.PAUSES}.*",
        f"{subjects.HALTED}.*",
        subjects.ROLL_CALL,
        f"{subjects.TAKEN}.>",
        *([] if user.only_tenants else offers),
    ]


def render_permissions(user: WorkerUser) -> str:
    """Render the permissions for a configuration of NATS Server."""
    published_text = _render_list(list_published_subjects(user))
    heard_text = _render_list(list_heard_subjects(user))
    rules = (
        f"  publish: {{ allow: [\n{published_text}  ] }}\n  subscribe: "
        f"{{ allow: [\n{heard_text}  ] }}\n"
    )
    return f"{{\n{rules}}}"


def _iterate_consumers(user: WorkerUser) -> Iterator[str]:
    common = () if user.only_tenants else (None,)
    for tenant_id in (*common, *user.tenants):
        for lane in worker_pools.LANES:
            yield build_worker_consumer(user.pool, lane, tenant_id)


def _list_tenant_tokens(user: WorkerUser) -> tuple[str, ...]:
    return user.tenants if user.only_tenants else ("*",)


def _render_list(subjects: list[str]) -> str:
    return "".join(f'{_INDENT * 2}"{subject}",\n' for subject in subjects)
