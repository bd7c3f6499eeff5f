"""Secrets on their way: every form of `auth`, every kind of entry, and nothing left behind."""

from base64 import b64encode
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.support.polling import eventually
from tests.support.scripted import Script, says, script, sends
from tests.support.working import Bench, bench, command_of

from noetl_contracts import codec
from noetl_contracts.requests.facts import CommandCompleted, CommandFailed
from noetl_worker.domain.secret_mask import SEALED

SECRET = "blaumeise-4711-geheim"  # noqa: S105 - a value for the test
TASK = "- step: s\n  tool: {kind: http, url: '%s', auth: %s}\n"


@pytest.fixture
async def worker() -> AsyncIterator[Bench]:
    async with bench(secret_env={"APP_SECRET": SECRET}, template_env={"REGION": "eu"}) as found:
        yield found


@pytest.fixture
async def server() -> AsyncIterator[Script]:
    async with script(says({"ok": True})) as found:
        yield found


def entry(name: str, kind: str, **fields: Any) -> dict[str, Any]:
    return {"name": name, "kind": kind, "fields": fields}


def static(name: str = "app", **fields: Any) -> dict[str, Any]:
    return entry(name, "static", map=fields)


async def run(worker: Bench, step: str, **about: Any) -> Any:
    (*_, last) = await worker.run(command_of(step, **about))
    return last


async def ended(worker: Bench, step: str, **about: Any) -> CommandCompleted:
    last = await run(worker, step, **about)
    assert isinstance(last, CommandCompleted), last
    return last


async def refused(worker: Bench, step: str, **about: Any) -> Any:
    last = await run(worker, step, **about)
    assert isinstance(last, CommandFailed), last
    return last.error


async def sent(worker: Bench, server: Script, auth: str, **about: Any) -> dict[str, str]:
    await ended(worker, TASK % (server.url, auth), **about)
    return server.seen[-1].headers


BASIC = "Basic " + b64encode(f"ann:{SECRET}".encode()).decode()


@pytest.mark.parametrize(
    ("auth", "header", "expected"),
    [
        ("stored", "Authorization", f"Bearer {SECRET}"),
        ("{credential: stored}", "Authorization", f"Bearer {SECRET}"),
        ("{source: credential, key: stored}", "Authorization", f"Bearer {SECRET}"),
        ("{api: {credential: stored}}", "Authorization", f"Bearer {SECRET}"),
        ("{api: stored}", "Authorization", f"Bearer {SECRET}"),
        ("'{{ workload.auth }}'", "Authorization", f"Bearer {SECRET}"),
        ("app", "Authorization", f"Bearer {SECRET}"),
        ("{type: bearer, name: app}", "Authorization", f"Bearer {SECRET}"),
        ("{type: bearer, name: stored}", "Authorization", f"Bearer {SECRET}"),
        ("{type: bearer, token: '{{ keychain.app.token }}'}", "Authorization", f"Bearer {SECRET}"),
        ("{one: {type: bearer, token: '{{ keychain.app.token }}'}}", "Authorization",
         f"Bearer {SECRET}"),
        ("{type: basic, username: ann, password: '{{ keychain.app.token }}'}", "Authorization",
         BASIC),
        ("{type: api_key, header: X-Key, value: '{{ keychain.app.token }}'}", "X-Key", SECRET),
    ],
)  # fmt: skip
async def test_every_form_of_auth_signs_a_request(
    worker: Bench, server: Script, auth: str, header: str, expected: str
) -> None:
    await worker.put_credential("stored", {"token": SECRET}, kind="bearer")
    headers = await sent(
        worker, server, auth, workload={"auth": "stored"}, keychain=[static(token=SECRET)]
    )
    assert headers[header] == expected


@pytest.mark.parametrize(
    ("auth", "says_what"),
    [
        ("gone", "credential 'gone' is not registered"),
        ("{source: adc}", "default credentials"),
        ("{source: \"{{ 'moon' }}\", key: a}", "unknown source 'moon'"),
        ("{type: \"{{ 'bearer' }}\"}", "lacks token"),
        ("{type: \"{{ 'basic' }}\", username: ann}", "lacks password"),
        ("{a: {credential: x}, b: {credential: y}}", "only duckdb takes several"),
        ("{dsn: 'postgres://ann@h/d'}", "which an http task cannot use"),
        ("{db_host: h, db_password: p}", "which an http task cannot use"),
        ("{type: s3, bucket: b}", "which an http task cannot use"),
        ("generic", "of type 'generic'"),
    ],
)
async def test_auth_that_cannot_be_used_is_a_config_error(
    worker: Bench, server: Script, auth: str, says_what: str
) -> None:
    await worker.put_credential("generic", {"a": "b"}, kind="generic")
    error = await refused(worker, TASK % (server.url, auth))
    assert (error.kind, server.seen) == ("config", [])
    assert says_what in error.message


async def test_an_oauth2_credential_is_exchanged_for_a_token_once(
    worker: Bench, server: Script
) -> None:
    await worker.put_credential(
        "app",
        {
            "token_url": server.url + "/token",
            "client_id": "me",
            "client_secret": SECRET,
            "scope": "read",
        },
        kind="oauth2",
    )
    server.answers(says({"access_token": "granted-0815-token", "expires_in": 600}), says({}))
    assert (await sent(worker, server, "app"))["Authorization"] == "Bearer granted-0815-token"
    assert (await sent(worker, server, "app"))["Authorization"] == "Bearer granted-0815-token"
    asked, first, second = server.seen
    assert asked.body.decode() == (
        f"grant_type=client_credentials&client_id=me&client_secret={SECRET}&scope=read"
    )
    assert {first.path, second.path} == {"/"}
    assert worker.mask.mask_text("a granted-0815-token b") == "a *** b"


async def test_a_refused_grant_fails_the_task_and_says_nothing_secret(
    worker: Bench, server: Script
) -> None:
    fields = {"token_url": server.url + "/token", "client_id": "me", "client_secret": SECRET}
    await worker.put_credential("app", fields, kind="oauth2")
    server.answers(says({"error": f"no such secret: {SECRET}"}, status=401))
    error = await refused(worker, TASK % (server.url, "app"))
    assert (error.kind, error.status) == ("auth", 401)
    assert "answered 401" in error.message
    assert SECRET not in codec.encode_text(error)


def _number(value: Any) -> str:
    return str(value) if type(value) is int else codec.encode_text(value)


@pytest.mark.parametrize("life", ["never", "nan", "1e999", -1, 10**400, [1], True, "600", None])
async def test_how_long_a_grant_holds_is_a_time_or_nothing_at_all(
    worker: Bench, server: Script, life: Any
) -> None:
    fields = {"token_url": server.url + "/token", "client_id": "me", "client_secret": SECRET}
    await worker.put_credential("app", fields, kind="oauth2")
    grant = f'{{"access_token": "granted-0815-token", "expires_in": {_number(life)}}}'
    server.answers(sends(grant.encode()), says({}))
    assert (await sent(worker, server, "app"))["Authorization"] == "Bearer granted-0815-token"


NOOP = (
    '- step: s\n  tool: {kind: python, input: {v: "{{ %s }}"}, code: "result = {\'n\': len(v)}"}\n'
)


def length(completed: CommandCompleted) -> int:
    found: int = completed.result.context["data"]["tasks"]["s_task"]["raw"]["n"]
    return found


@pytest.mark.parametrize(
    ("definition", "expression"),
    [
        (static(token=SECRET), "keychain.app.token"),
        (entry("app", "bearer", token="{{ keychain.other.part }}"), "keychain.app.token"),  # noqa: S106 - a template
        (entry("app", "credential", credential="stored"), "keychain.app.token"),
        (entry("stored", "credential"), "keychain.stored.token"),
        (entry("stored", "postgres_credential"), "keychain.stored.token"),
        (entry("app", "secret_manager", provider="env", map={"pw": "APP_SECRET"}),
         "keychain.app.pw"),
        (entry("app", "secrets", provider="env", map={"pw": "{{ workload.v }}"}),
         "keychain['app'].pw"),
        (static(token=SECRET), "token('app')"),
        (static(token=SECRET), "token('stored')"),
    ],
)  # fmt: skip
async def test_every_kind_of_entry_is_resolved_when_it_is_named(
    worker: Bench, definition: dict[str, Any], expression: str
) -> None:
    await worker.put_credential("stored", {"token": SECRET}, kind="bearer")
    keychain = [static("other", part=SECRET), definition]
    completed = await ended(
        worker, NOOP % expression, keychain=keychain, workload={"v": "APP_SECRET"}
    )
    assert length(completed) == len(SECRET)


async def test_entries_from_servers_are_fetched_once_and_kept(
    worker: Bench, server: Script
) -> None:
    await worker.put_credential("vault", {"url": server.url, "token": "root-token"}, kind="generic")
    keychain = [
        entry("hv", "secret_manager", provider="vault", auth="vault", map={"pw": "kv/data/a#pw"}),
        entry("web", "http", url="{{ workload.url }}/x", map={"key": "data.keys[0]"}),
        entry("shop", "oauth2", endpoint=server.url + "/t", data={"grant": "{{ keychain.hv.pw }}"}),
    ]
    step = (
        "- step: s\n  tool: {kind: python, input: {v: '{{ keychain.hv.pw ~ keychain.web.key ~"
        " keychain.shop.token }}'}, code: \"result = {'n': len(v)}\"}\n"
    )
    server.answers(
        says({"data": {"data": {"pw": SECRET}}}),
        says({"data": {"keys": ["key-12345678"]}}),
        says({"access_token": "token-12345678", "expires_in": 600}),
    )
    for _ in range(2):
        completed = await ended(worker, step, keychain=keychain, workload={"url": server.url})
        assert length(completed) == len(SECRET) + 12 + 14
    first, second, third = server.seen
    assert (first.path, first.headers["X-Vault-Token"]) == ("/v1/kv/data/a", "root-token")
    assert (second.path, third.body.decode()) == ("/x", f"grant={SECRET}")


async def test_auto_renew_asks_again_when_a_token_has_expired(
    worker: Bench, server: Script
) -> None:
    granted = iter(range(100))

    async def answer(request: Any) -> Any:
        number = next(granted) if request.path != "/" else 0
        return await says({"access_token": f"token-number-{number}", "expires_in": 0})(request)

    server.answers(answer)
    step = "- step: s\n  tool: {kind: http, url: '%s', headers: {A: '{{ keychain.shop.token }}'}}\n"

    async def used(*, renews: bool) -> str:
        url = f"{server.url}/{renews}"
        shop = entry("shop", "oauth2", endpoint=url, auto_renew=renews)
        await ended(worker, step % server.url, keychain=[shop])
        return server.seen[-1].headers["A"]

    assert (await used(renews=False), await used(renews=True)) == (
        "token-number-0",
        "token-number-1",
    )

    async def is_renewed() -> bool:
        return await used(renews=True) != "token-number-1"

    await eventually(is_renewed)
    assert await used(renews=False) == "token-number-0"


@pytest.mark.parametrize(
    ("definition", "kind", "says_what"),
    [
        (entry("app", "google_id_token", target_audience="x"), "config", "service account"),
        (entry("app", "secret_manager", provider="gcp", map={"a": "b"}), "config", "'gcp'"),
        (entry("app", "secret_manager", provider="env", map={"a": "PATH"}), "config",
         "NOETL_WORKER_SECRET_ENV"),
        (entry("app", "secret_manager", provider="env"), "config", "a mapping 'map'"),
        (entry("app", "moon"), "config", "kind 'moon' is not known"),
        (entry("app", "credential", credential="gone"), "config", "'gone' is not registered"),
        (entry("app", "credential"), "config", "'app' is not registered"),
        (entry("app", "bearer"), "config", "a text 'token'"),
        (entry("app", "bearer", token="{{ keychain.app.token }}"), "config", "app -> app"),  # noqa: S106 - a template
        (entry("app", "bearer", token="{{ workload.gone }}"), "template", "field 'token'"),  # noqa: S106 - a template
        (entry("app", "oauth2"), "config", "needs an endpoint"),
        (entry("app", "oauth2", endpoint="http://169.254.169.254/"), "config", "not allowed"),
        (entry("app", "http", map={"a": "b"}), "config", "needs a url"),
    ],
)  # fmt: skip
async def test_an_entry_that_cannot_be_resolved_fails_the_task_that_names_it(
    worker: Bench, definition: dict[str, Any], kind: str, says_what: str
) -> None:
    error = await refused(worker, NOOP % "keychain.app.a", keychain=[definition])
    assert error.kind == kind
    assert says_what in error.message
    untouched = "- step: s\n  tool: {kind: noop}\n"
    await ended(worker, untouched, keychain=[definition])
    required = {**definition, "fields": {**definition["fields"], "required": True}}
    error = await refused(worker, untouched, keychain=[required])
    assert says_what in error.message


@pytest.mark.parametrize(
    ("expression", "says_what"),
    [
        ("keychain.shpo.token", "'keychain.shpo.token' is undefined"),
        ("keychain.app.tokn", "did you mean 'keychain.app.token'?"),
        ("keychain", "name a field"),
        ("keychain.items()", "name a field"),
        ("token('gone')", "'gone' is not registered"),
    ],
)
async def test_a_name_that_is_no_secret_is_an_error(
    worker: Bench, expression: str, says_what: str
) -> None:
    error = await refused(worker, NOOP % expression, keychain=[static(token=SECRET)])
    assert says_what in error.message


async def test_env_shows_what_the_deployment_lists(worker: Bench) -> None:
    result = "{a: '{{ env.REGION }}', b: '{{ env.HOME | d(0) }}'}"
    step = f"- step: s\n  tool: {{kind: noop, result: {result}}}\n"
    completed = await ended(worker, step)
    assert completed.result.context["data"]["tasks"]["s_task"]["raw"] == {"a": "eu", "b": 0}


SETS = """\
- step: s
  tool:
    kind: noop
    set: {ctx.a: "{{ keychain.app.pin }}", ctx.b: {deep: ["{{ 'lemon' | encrypt_secret }}", 7]},
          k: "x{{ keychain.app.token }}", iter.k: "{{ keychain.app.token }}"}
    spec: {policy: {rules: [{else: {then: {do: continue, set: {c: "{{ k }}", ctx.d: "plain"}}}}]}}
"""


async def test_state_keeps_secrets_sealed_and_tools_get_them_opened(worker: Bench) -> None:
    keychain = [static(pin="1234", token=SECRET)]
    patch = (await ended(worker, SETS, keychain=keychain)).patch
    assert SEALED.fullmatch(patch["a"])
    assert SEALED.fullmatch(patch["b"]["deep"][0])
    assert SEALED.fullmatch(patch["c"])
    assert (patch["b"]["deep"][1], patch["d"]) == (7, "plain")
    code = "result = [len(a), len(b['deep'][0]), len(c), len(t)]"
    step = (
        "- step: s\n  tool: {kind: python, input: {a: '{{ ctx.a }}', b: '{{ ctx.b }}', "
        f"c: '{{{{ ctx.c }}}}', t: 'Bearer {{{{ ctx.a }}}}'}}, code: \"{code}\"}}\n"
    )
    completed = await ended(worker, step, ctx=patch)
    raw = completed.result.context["data"]["tasks"]["s_task"]["raw"]
    assert raw == [4, 5, len(SECRET) + 1, 11]


async def test_a_mapping_of_secrets_keeps_its_keys(worker: Bench) -> None:
    step = '- step: s\n  tool: {kind: noop, set: {ctx.a: "{{ keychain.app }}"}}\n'
    patch = (await ended(worker, step, keychain=[static(user="ann", pin="1234")])).patch
    assert patch["a"].keys() == {"user", "pin"}
    assert all(SEALED.fullmatch(value) for value in patch["a"].values())


async def test_a_credential_that_was_missing_is_found_soon_after_it_is_registered(
    worker: Bench, server: Script
) -> None:
    await refused(worker, TASK % (server.url, "late"))
    await worker.put_credential("late", {"token": SECRET}, kind="bearer")

    async def is_found() -> bool:
        return isinstance(await run(worker, TASK % (server.url, "late")), CommandCompleted)

    await eventually(is_found)


async def test_a_secret_does_not_follow_a_redirect_to_another_origin(
    worker: Bench, server: Script
) -> None:
    async with script() as other:
        other.answers(says({}))
        server.answers(says({}, status=302, headers={"Location": other.url}))
        step = (
            "- step: s\n  tool: {kind: http, url: '%s', headers: {Accept: a/b,"
            " X-Own: 'k {{ keychain.app.token }}'}}\n"
        )
        await ended(worker, step % server.url, keychain=[static(token=SECRET)])
        (seen,) = other.seen
    assert "X-Own" in server.seen[0].headers
    assert (seen.headers.get("Accept"), seen.headers.get("X-Own")) == ("a/b", None)


async def test_what_a_noop_shows_of_a_short_secret_is_masked(worker: Bench) -> None:
    step = '- step: s\n  tool: {kind: noop, result: {a: "{{ keychain.app.pin }}", b: 1}}\n'
    completed = await ended(worker, step, keychain=[static(pin="pin-4711")])
    assert completed.result.context["data"]["tasks"]["s_task"]["raw"] == {"a": "***", "b": 1}


async def test_a_sealed_value_that_was_changed_is_refused(worker: Bench) -> None:
    patch = (await ended(worker, SETS, keychain=[static(pin="1234", token=SECRET)])).patch
    broken = patch["a"][:-3] + ("AAA" if not patch["a"].endswith("AAA") else "BBB")
    error = await refused(worker, NOOP % "ctx.a", ctx={"a": broken})
    assert error.kind == "config"
    assert "does not open" in error.message
