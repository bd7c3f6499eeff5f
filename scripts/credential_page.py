# ruff: noqa: E501 - the text of pages has the width of pages
"""The page of credentials: its tables of types and fields are made from the code."""

from noetl_contracts.credential_types import TYPE_ALIASES, TYPES, CredentialField, CredentialType

_HEAD = """# Credentials

A credential is kept under a name, sealed, and opened by workers alone. Playbooks name it in `auth`.

```console
$ noetl credential put main_db --type postgres --data dsn=postgresql://ann:secret@db.example.org:5432/shop
$ noetl credential put warehouse --target      # the database of `noetl up` for your own data
$ noetl credential put shop --type bearer --data token=...
$ noetl credential test main_db
$ noetl credential ls
$ noetl credential rm shop
```

Over HTTP: `POST /api/credentials` with `{name, type, data}`, `GET /api/credentials`, `GET` and `DELETE
/api/credentials/{name}`, `POST /api/credentials/{name}/test`. No answer holds a value. Where secrets are and who sees them is told in [security.md](../security.md#secrets).

The API checks a credential before it keeps it. It refuses, with 400 `bad_request`, an unknown type, a field that the type
does not have, a field that is missing, a `dsn` that is no address, a `port` that is no port. The answer names every fault, the
nearest name, and the fields of the type. Workers read all spellings of a field.

This page is made from the table of types by `python -m scripts.pages`.

## Testing a credential

```console
$ noetl credential test main_db
$ noetl credential test shop --url https://api.example.org/v1/me
$ noetl credential test files --url s3://invoices --pool gpu
```

A worker opens the credential, as it is stored now, and says what it found: the server and its version, the user, the
latency in milliseconds. An error says its kind and what to check. The exit code is 0 when the credential opens, 1 when it does not, 2 when
it cannot be tested, and 124 when no worker has ended the test within `--timeout` (90 s); the test is cancelled then.

Credentials for requests name no server: they are tested at `--url`, else at their field `test_url`. The worker sends one request
with the credential and one without. When both are answered, a note says that the address proves nothing. Addresses obey the rules of the
[http](tools/http.md) tool.

A test is an execution of one step with the path `system/credential-test`, which nobody can register. The history keeps who was
tested, the address and the outcome; no value of the credential is in it. The API is `POST /api/credentials/{name}/test` with
`{"pool": ..., "url": ...}`, both optional; it answers as `POST /api/execute` does, also to `Prefer: wait=20`. A playbook tests a
credential with a task of kind `credential_test`: `{kind: credential_test, auth: main_db}`, with `url` where it is needed.

| type | its test |
|---|---|
"""
_TYPES = """
## Types

| type | is | needs |
|---|---|---|
"""


def page() -> str:
    """Write the page."""
    rows = "".join(
        f"| `{each.name}` | {each.meaning} | {_needs(each)} |\n" for each in TYPES.values()
    )
    tests = "".join(f"| `{each.name}` | {_test(each)} |\n" for each in TYPES.values())
    aliases = ", ".join(f"`{alias}` is `{of}`" for alias, of in TYPE_ALIASES.items())
    closed = "".join(_section(each) for each in TYPES.values() if each.fields)
    return f"{_HEAD}{tests}{_TYPES}{rows}\nOther names: {aliases}.\n{closed}"


def _test(kind: CredentialType) -> str:
    return kind.tested_by or f"none: {kind.untestable}"


def _needs(kind: CredentialType) -> str:
    if kind.is_open:
        return "any fields"
    return ", ".join(" or ".join(f"`{name}`" for name in group) for group in kind.needs)


def _section(kind: CredentialType) -> str:
    rows = "".join(_row(field) for field in kind.fields)
    return f"\n## {kind.name}\n\n| field | also | is |\n|---|---|---|\n{rows}"


def _row(field: CredentialField) -> str:
    also = ", ".join(f"`{name}`" for name in (*field.spellings, *field.renames))
    return f"| `{field.name}` | {also} | {field.meaning} |\n"
