"""The examples, what they are expected to do, and one system in a process that runs them."""

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import yaml
from msgspec import Struct, convert
from tests.support import inprocess, shop
from tests.support.identities import OWNER_TOKEN
from tests.support.prefixes import list_prefix_differences
from tests.support.servers import READY_TIMEOUT_S, wait_until
from tests.support.services import free_port
from tests.support.sparking import forget_keys

from noetl_cli.files.playbook_file import ScriptFolder
from noetl_cli.local import system
from noetl_cli.local.system import LocalSystem
from noetl_contracts.ids import ExecutionId
from noetl_planner.identity.authenticator import digest_token
from noetl_playbook.parse.playbook import parse_playbook

EXAMPLES = Path(__file__).parents[2] / "examples"
EXPECTED = EXAMPLES / "expected"
SCRIPTS = EXAMPLES / "scripts"
PATIENCE_S = 600.0
ENDS = frozenset({"COMPLETED", "FAILED", "CANCELLED"})
ANYTHING = "<anything>"
EVENTS_MAX = 1000


class Approve(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A decision of a person, once it is asked for."""

    title: str
    decision: str
    comment: str | None = None


class Signal(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A message to whoever waits for a key."""

    key: str
    body: Any


class Meanwhile(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What happens from outside while the example runs."""

    approve: Approve | None = None
    signal: Signal | None = None
    # Cancels, once an event of this type is in the history.
    cancel_after: str | None = None


class Expected(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How an example is run in the tests, and what becomes of it.

    Mappings of `results` and `error` name what must be there; `ctx` is all that there is.
    """

    needs: tuple[str, ...] = ()
    inputs: dict[str, Any] = {}
    # What the request calls them.
    inputs_as: str = "workload"
    calls: tuple[str, ...] = ()
    meanwhile: Meanwhile = Meanwhile()
    has_older_forms: bool = False
    status: str = "COMPLETED"
    ctx: dict[str, Any] = {}
    results: dict[str, Any] = {}
    error: dict[str, Any] | None = None
    # Texts that stand nowhere in the history.
    hides: tuple[str, ...] = ()
    # How often events of a type stand in the history.
    events: dict[str, int] = {}


def names() -> list[str]:
    """Name every example, by its file."""
    return sorted(file.stem for file in EXAMPLES.glob("*.yaml"))


def text_of(name: str) -> str:
    """Read an example."""
    return (EXAMPLES / f"{name}.yaml").read_text("utf-8")


def expected(name: str) -> Expected:
    """Read what is expected of an example."""
    return convert(yaml.safe_load((EXPECTED / f"{name}.yaml").read_text("utf-8")), Expected)


def differences(wanted: Any, found: Any, place: str = "") -> list[str]:
    """Say where a value is not what was expected; mappings may hold more than is named."""
    if wanted == ANYTHING:
        return [] if found is not None else [f"{place} is missing"]
    if isinstance(wanted, dict) and isinstance(found, dict):
        return [
            item
            for key, value in wanted.items()
            for item in differences(value, found.get(key), f"{place}.{key}")
        ]
    if isinstance(wanted, list) and isinstance(found, list) and len(wanted) == len(found):
        pairs = enumerate(zip(wanted, found, strict=True))
        return [line for i, (w, f) in pairs for line in differences(w, f, f"{place}[{i}]")]
    return [] if wanted == found else [f"{place}: {found!r} is not {wanted!r}"]


class Gallery:
    """Every service in one process, with a shop beside it; methods block and ask over HTTP."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._port = free_port()
        self._is_up = threading.Event()
        self._thread = threading.Thread(target=self._main, name="gallery")
        self._loop: asyncio.AbstractEventLoop | None = None
        self._system: LocalSystem | None = None
        self.shop_url = ""
        self.patience_s = PATIENCE_S
        self.api = httpx.Client(
            base_url=f"http://127.0.0.1:{self._port}/api",
            headers={"Authorization": f"Bearer {OWNER_TOKEN}"},
            timeout=30,
        )

    def start(self) -> None:
        """Start everything and wait until the API answers."""
        self._thread.start()
        assert self._is_up.wait(READY_TIMEOUT_S)
        wait_until(self._answers, timeout_s=READY_TIMEOUT_S, what="the API answers")

    def stop(self) -> None:
        """Stop everything and wait for it."""
        self.api.close()
        assert self._loop is not None
        assert self._system is not None
        self._loop.call_soon_threadsafe(self._system.process.stop.set)
        self._thread.join(READY_TIMEOUT_S)
        assert not self._thread.is_alive()
        forget_keys()

    def keep_credential(self, name: str, kind: str, **data: str) -> None:
        """Keep a credential."""
        body = {"name": name, "type": kind, "data": data}
        self.api.post("/credentials", json=body).raise_for_status()

    def keep_shop_credential(self) -> None:
        """Keep what logs in to the shop."""
        login = {"client_id": "us", "client_secret": "x"}
        self.keep_credential("shop_app", "oauth2", token_url=f"{self.shop_url}/login", **login)

    def register(self, text: str) -> str:
        """Register a playbook, with the scripts beside the examples, and return its path."""
        read_script = ScriptFolder(EXAMPLES).read_script
        if scripts := parse_playbook(text, read_script=read_script).script_by_name:
            body = {"content": text, "scripts": scripts}
            answer = self.api.post("/catalog/register", json=body)
        else:
            answer = self.api.post("/catalog/register", content=text)
        assert answer.is_success, answer.text
        return str(answer.json()["path"])

    def execute(self, path: str, inputs: dict[str, Any], *, called: str = "workload") -> str:
        """Start a registered playbook and return the execution's id."""
        answer = self.api.post("/execute", json={"path": path, called: inputs})
        assert answer.is_success, answer.text
        return str(answer.json()["execution_id"])

    def differences(self, wanted: Expected, text: str) -> list[str]:
        """Run a playbook and say what became otherwise than expected."""
        inputs = {"shop": self.shop_url} if "shop" in wanted.needs else {}
        path = self.register(text)
        execution_id = self.execute(path, {**inputs, **wanted.inputs}, called=wanted.inputs_as)
        self.interfere(wanted.meanwhile, execution_id)
        ended = self.end_of(execution_id)
        history = self.history(execution_id)
        counted = Counter(event["event_type"] for event in history)
        found = [f"{text!r} is shown" for text in wanted.hides if text in str(history)]
        if ended["status"] != wanted.status:
            found.append(f"{ended['status']}: {ended['error']}")
        if ended["variables"] != wanted.ctx:
            found.append(f"ctx is {ended['variables']}")
        found += differences(wanted.error or {}, ended["error"] or {}, "error")
        found += differences(wanted.events, {kind: counted[kind] for kind in wanted.events})
        for step, result in wanted.results.items():
            found += differences(result, self.result(execution_id, step), step)
        return found + self.disparities(execution_id)

    def disparities(self, execution_id: str) -> list[str]:
        """Say where the projection is not what a replay gives, at the end and on the way there."""
        assert self._loop is not None
        future = asyncio.run_coroutine_threadsafe(
            self._disparities(ExecutionId(execution_id)), self._loop
        )
        return future.result(READY_TIMEOUT_S)

    async def _disparities(self, execution_id: ExecutionId) -> list[str]:
        assert self._system is not None
        # Whoever asked for it has seen the end; the very last events may still be on their way.
        told = await inprocess.settled(self._system, execution_id)
        on_the_way = await list_prefix_differences(told)
        return [f"at version {place}: {item}" for place, item in on_the_way]

    def history(self, execution_id: str) -> list[dict[str, Any]]:
        """The events of an execution, in order."""
        found: list[dict[str, Any]] = []
        while True:
            after = found[-1]["version"] if found else 0
            query = {"after": after, "limit": EVENTS_MAX}
            answer = self.api.get(f"/executions/{execution_id}/events", params=query)
            assert answer.is_success, answer.text
            found += answer.json()["events"]
            if not answer.json()["has_more"]:
                return found

    def status(self, execution_id: str) -> dict[str, Any]:
        """How an execution stands; no status while nothing is projected."""
        answer = self.api.get(f"/executions/{execution_id}/status")
        shown: dict[str, Any] = answer.json() if answer.is_success else {"status": None}
        return shown

    def end_of(self, execution_id: str) -> dict[str, Any]:
        """Wait for the end and return how the execution stands."""
        wait_until(
            lambda: self.status(execution_id)["status"] in ENDS,
            timeout_s=self.patience_s,
            what=f"the end of execution {execution_id}",
        )
        return self.status(execution_id)

    def result(self, execution_id: str, step: str) -> Any:
        """The latest result of a step."""
        answer = self.api.get(f"/result/{execution_id}/{step}")
        assert answer.is_success, answer.text
        return answer.json()["data"]

    def interfere(self, meanwhile: Meanwhile, execution_id: str) -> None:
        """Do what happens from outside."""
        if meanwhile.signal is not None:
            key = meanwhile.signal.key.format(execution_id=execution_id)
            sent = self.api.post(f"/signals/{key}", json=meanwhile.signal.body)
            assert sent.is_success, sent.text
        if meanwhile.approve is not None:
            self._approve(meanwhile.approve, execution_id)
        if meanwhile.cancel_after is not None:
            cancel_after = meanwhile.cancel_after
            wait_until(
                lambda: (
                    cancel_after in {event["event_type"] for event in self.history(execution_id)}
                ),
                timeout_s=PATIENCE_S,
                what=f"{cancel_after} of {execution_id}",
            )
            answer = self.api.post(f"/executions/{execution_id}/cancel", json={"reason": "enough"})
            assert answer.is_success, answer.text

    def _approve(self, decision: Approve, execution_id: str) -> None:
        def asked() -> list[dict[str, Any]]:
            every = self.api.get("/approvals").json()["approvals"]
            return [item for item in every if item["execution_id"] == execution_id]

        wait_until(lambda: bool(asked()), timeout_s=PATIENCE_S, what="an approval is asked for")
        (found,) = asked()
        assert found["title"] == decision.title
        body = {"decision": decision.decision, "comment": decision.comment, "by": "ann"}
        answer = self.api.post(f"/approvals/{found['approval_id']}", json=body)
        assert answer.is_success, answer.text

    def _answers(self) -> bool:
        try:
            return self.api.get("/health").is_success
        except httpx.TransportError:
            return False

    def _main(self) -> None:
        asyncio.run(self._run())

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        configs = system.load_settings(self._settings(), self._folder / "payloads")
        async with (
            shop.serving() as self.shop_url,
            system.open_system(configs) as self._system,
            asyncio.TaskGroup() as tasks,
        ):
            tasks.create_task(system.run_services(self._system, listens=True))
            self._is_up.set()

    def _settings(self) -> dict[str, str]:
        """What an operator would set for these examples."""
        work = self._folder / "work"
        work.mkdir()
        return {
            "NOETL_PLANNER_HTTP_HOST": "127.0.0.1",
            "NOETL_PLANNER_HTTP_PORT": str(self._port),
            "NOETL_PLANNER_OWNER_TOKEN_SHA256": digest_token(OWNER_TOKEN),
            "NOETL_PLANNER_CANCEL_GRACE_S": "5",
            "NOETL_WORKER_CALLBACK_URL": f"http://127.0.0.1:{self._port}",
            "NOETL_WORKER_SHELL_ALLOWED": "true",
            "NOETL_WORKER_SCRIPT_DIRECTORY": str(SCRIPTS),
            "NOETL_WORKER_WORK_DIRECTORY": str(work),
        }


@contextmanager
def open_gallery(folder: Path) -> Iterator[Gallery]:
    """A started gallery."""
    gallery = Gallery(folder)
    gallery.start()
    try:
        yield gallery
    finally:
        gallery.stop()
