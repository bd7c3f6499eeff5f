# ruff: noqa: E501 - the text of pages has the width of pages
"""The page of credentials: its tables of types and fields are made from the code."""

from noetl_contracts.credentials import TYPE_ALIASES, TYPES, CredentialField, CredentialType

_HEAD = """# Credentials

A credential is kept under a name, sealed, and opened by workers alone. Playbooks name it in `auth`.

```console
$ noetl credential put main_db --type postgres --data dsn=postgresql://ann:secret@db.example.org:5432/shop
$ noetl credential put warehouse --target      # the database of `noetl up` for your own data
$ noetl credential put lake --bucket           # its bucket, s3://target/
$ noetl credential put shop --type bearer --data token=...
$ noetl credential put eu --type bearer --data token=... --allow-path sales/eu   # for this playbook or folder alone
$ noetl credential test main_db
$ noetl credential ls
$ noetl credential rm shop
```

```yaml
- {step: load, tool: {kind: postgres, auth: main_db, query: TABLE orders}, next: send}
- {step: send, tool: {kind: http, method: POST, url: "https://api.example.org", auth: shop, json: "{{ load.rows }}"}}
```

The same over HTTP: `POST /api/credentials` with `{name, type, data}`, `GET /api/credentials`, `GET` and `DELETE
/api/credentials/{name}`, `POST /api/credentials/{name}/test`. No answer holds a value. Storage and access:
[secrets](secrets.md).

A credential is checked before it is stored. An unknown type or field, a missing field, a wrong `dsn` or `port` are refused
with 400 `bad_request`. The answer names every fault, the nearest name, and the fields of the type.

Of a field with several names the first is the usual one.

## Testing a credential

```console
$ noetl credential test main_db
$ noetl credential test shop --url https://api.example.org/v1/me
$ noetl credential test files --url s3://invoices --pool gpu
```

A worker opens it and reports the server, its version, the user and the latency. Exit codes: 0 it opens, 1 it does not or names
no server, 2 it is refused (no such credential, or no test for its type), 124 no worker answered within `--timeout` (90 s).

Credentials for requests are tested at `--url`, else at their field `test_url`. If that answers without the credential too, a note
says so. The address rules of [http](tools/http.md) hold.

A test is an execution with the reserved path `system/credential-test`; its history has no value of the credential. The API is
`POST /api/credentials/{name}/test` with optional `{"pool": ..., "url": ...}`; it answers as `POST /api/execute`, also to
`Prefer: wait=20`. In a playbook use the kind [`credential_test`](tools/credential_test.md).

"""
_TYPES = """
## Types

"""


def page() -> str:
    """Write the page; types that have the same fields share a section."""
    aliases = ", ".join(f"`{alias}` is `{of}`" for alias, of in TYPE_ALIASES.items())
    rows = "".join(
        f"* `{item.name}`: {item.meaning}. Needs {_needs(item)}.\n" for item in TYPES.values()
    )
    tests: dict[str, list[str]] = {}
    for item in TYPES.values():
        tests.setdefault(_test(item), []).append(f"`{item.name}`")
    tested = "".join(f"* {', '.join(names)}: {test}.\n" for test, names in tests.items())
    groups: dict[tuple[CredentialField, ...], list[str]] = {}
    for item in TYPES.values():
        if item.fields:
            groups.setdefault(tuple(item.fields), []).append(item.name)
    fields = "".join(_section(names, group) for group, names in groups.items())
    return f"{_HEAD}{tested}{_TYPES}{rows}\nOther names: {aliases}.\n{fields}"


def _test(kind: CredentialType) -> str:
    return kind.tested_by or f"no test, as {kind.untestable}"


def _needs(kind: CredentialType) -> str:
    if kind.is_open:
        return "any fields"
    return ", ".join(" or ".join(f"`{name}`" for name in group) for group in kind.needs)


def _section(names: list[str], fields: tuple[CredentialField, ...]) -> str:
    return f"\n## {', '.join(names)}\n\n" + "".join(_field(field) for field in fields)


def _field(field: CredentialField) -> str:
    also = "".join(f", `{name}`" for name in (*field.spellings, *field.renames))
    return f"* `{field.name}`{also}: {field.meaning}\n"
