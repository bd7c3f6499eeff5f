"""Credentials as they rest: sealed, versioned, addressed by name."""

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

# The kind of a version that ends a credential: versions are never removed, so that none is reused.
DELETED = "deleted"
# The path of the executions that test credentials.
CREDENTIAL_TEST_PATH = "system/credential-test"
# What the API itself runs; nobody else registers it, or starts a version of it.
RESERVED_PATHS = frozenset({CREDENTIAL_TEST_PATH})
# What is sealed beside the fields: the folders of playbooks that may use the credential.
ALLOWED_PATHS = "$allowed_paths"
# What a sealed text begins with; logs show nothing of what follows.
TEXT_PREFIX = "sealed:v1:"
_TESTED_BY_REQUEST = "a GET of `--url` or `test_url`, with the credential and without it"
_TESTED_BY_BUCKETS = "a list of its buckets, or of one bucket: `--url s3://BUCKET`"
TYPE_ALIASES = {"postgresql": "postgres", "pg": "postgres", "aws_credentials": "aws"}


class SealedCredential(Struct, frozen=True, kw_only=True):
    """AES-256-GCM ciphertext of the credential's JSON fields; opened only inside a worker.

    The associated data is `<tenant>/<organization>/<name>/<version>`, so that a sealed value
    cannot be moved under another name.
    """

    name: str
    version: int
    kind: str
    key_id: str
    nonce: str
    ciphertext: str


def build_object_name(name: str, version: int) -> str:
    """Name the payload store's object that holds a sealed credential."""
    return f"credentials/{name}/{version:010d}"


def build_object_prefix(name: str) -> str:
    """Name the folder of all versions of a credential."""
    return f"credentials/{name}/"


def build_associated_data(tenant_id: str, organization_id: str, name: str, version: int) -> bytes:
    """Bind a sealed credential to its place."""
    return f"{tenant_id}/{organization_id}/{name}/{version}".encode()


def split_allowed_paths(opened_fields: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Split what was sealed into the fields and the paths that may use them; none: every path."""
    fields = dict(opened_fields)
    paths = fields.pop(ALLOWED_PATHS, [])
    return fields, tuple(str(path) for path in paths)


def is_path_allowed(path: str, allowed: tuple[str, ...]) -> bool:
    """Tell whether a playbook may use a credential: it is one of the paths, or in a folder of them.

    The test of a credential always may.
    """
    return (
        not allowed
        or path == CREDENTIAL_TEST_PATH
        or any(path == item or path.startswith(f"{item}/") for item in allowed)
    )


class CredentialField(Struct, frozen=True, kw_only=True):
    """One field; workers read each of its `spellings` as the name itself.

    A name of `renames` is kept under the field's own name, because workers do not read it.
    """

    name: str
    meaning: str
    spellings: tuple[str, ...] = ()
    renames: tuple[str, ...] = ()


class CredentialType(Struct, frozen=True, kw_only=True):
    """What a credential of one type holds.

    Of each group of `needs` one field must be there. An open type takes any field. A type that
    cannot be tested says why in `untestable`.
    """

    name: str
    meaning: str
    fields: tuple[CredentialField, ...] = ()
    needs: tuple[tuple[str, ...], ...] = ()
    is_open: bool = False
    tested_by: str = ""
    untestable: str = ""

    def find_field(self, key: str) -> CredentialField | None:
        """Find the field that a key spells."""
        for field in self.fields:
            if key == field.name or key in field.spellings or key in field.renames:
                return field
        return None

    def list_keys(self) -> list[str]:
        """List every key that is taken."""
        return [
            key for field in self.fields for key in (field.name, *field.spellings, *field.renames)
        ]


_ACCESS = (
    CredentialField(name="access_key", meaning="the key's id", renames=("access_key_id",)),
    CredentialField(name="secret_key", meaning="the key", renames=("secret_access_key",)),
    CredentialField(name="region", meaning="the region", renames=("region_name",)),
    CredentialField(
        name="endpoint", meaning="another address than the cloud's", renames=("endpoint_url",)
    ),
)
_TOKEN = CredentialField(name="token", meaning="sent as `Authorization: Bearer`")
_TEST_URL = CredentialField(
    name="test_url", meaning="an address that answers this credential alone, for its test"
)

_TYPES = (
    CredentialType(
        name="postgres",
        meaning="a PostgreSQL database",
        fields=(
            CredentialField(
                name="dsn",
                meaning="`postgresql://user:password@host:port/database`, instead of the rest",
                renames=("url", "uri", "connection_string"),
            ),
            CredentialField(name="host", meaning="the server", spellings=("db_host",)),
            CredentialField(name="port", meaning="5432 by default", spellings=("db_port",)),
            CredentialField(
                name="user",
                meaning="the role",
                spellings=("username", "db_user", "db_username"),
            ),
            CredentialField(name="password", meaning="its password", spellings=("db_password",)),
            CredentialField(
                name="database",
                meaning="the database",
                spellings=("name", "db_name", "db_database"),
                renames=("dbname",),
            ),
            CredentialField(name="sslmode", meaning="as of libpq", spellings=("db_sslmode",)),
        ),
        needs=(("dsn", "host"),),
        tested_by="a connection and a query of the server's version",
    ),
    CredentialType(
        name="bearer",
        meaning="a token of an API",
        fields=(_TOKEN, _TEST_URL),
        needs=(("token",),),
        tested_by=_TESTED_BY_REQUEST,
    ),
    CredentialType(
        name="httpBearerAuth",
        meaning="as `bearer`",
        fields=(_TOKEN, _TEST_URL),
        needs=(("token",),),
        tested_by=_TESTED_BY_REQUEST,
    ),
    CredentialType(
        name="basic",
        meaning="a name and a password of an API",
        fields=(
            CredentialField(name="username", meaning="the name", spellings=("user",)),
            CredentialField(name="password", meaning="its password"),
            _TEST_URL,
        ),
        needs=(("username",),),
        tested_by=_TESTED_BY_REQUEST,
    ),
    CredentialType(
        name="api_key",
        meaning="a key of an API",
        fields=(
            CredentialField(name="value", meaning="the key", renames=("key", "api_key")),
            CredentialField(name="header", meaning="its header, `X-API-Key` by default"),
            _TEST_URL,
        ),
        needs=(("value",),),
        tested_by=_TESTED_BY_REQUEST,
    ),
    CredentialType(
        name="oauth2",
        meaning="a client that gets tokens by client credentials",
        fields=(
            CredentialField(name="token_url", meaning="where tokens are asked for"),
            CredentialField(name="client_id", meaning="the client"),
            CredentialField(name="client_secret", meaning="its secret"),
            CredentialField(name="scope", meaning="what the token is for"),
            CredentialField(name="audience", meaning="whom the token is for"),
            _TEST_URL,
        ),
        needs=(("token_url",), ("client_id",), ("client_secret",)),
        tested_by="a new token, and a GET with it where there is an address",
    ),
    CredentialType(
        name="nats",
        meaning="a NATS server",
        fields=(
            CredentialField(name="url", meaning="`nats://host:port`", renames=("server",)),
            CredentialField(name="user", meaning="the user", renames=("username",)),
            CredentialField(name="password", meaning="its password"),
            CredentialField(name="token", meaning="a token instead of them"),
            CredentialField(name="creds", meaning="the text of a credentials file"),
        ),
        needs=(("url",),),
        tested_by="a connection, a round trip, and whether JetStream answers",
    ),
    CredentialType(
        name="s3",
        meaning="an object store that speaks S3",
        fields=_ACCESS,
        needs=(("access_key",), ("secret_key",)),
        tested_by=_TESTED_BY_BUCKETS,
    ),
    CredentialType(
        name="minio",
        meaning="as `s3`",
        fields=_ACCESS,
        needs=(("access_key",), ("secret_key",)),
        tested_by=_TESTED_BY_BUCKETS,
    ),
    CredentialType(
        name="gcs_hmac",
        meaning="a bucket of Google Cloud Storage, by HMAC keys",
        fields=_ACCESS,
        needs=(("access_key",), ("secret_key",)),
        tested_by=_TESTED_BY_BUCKETS,
    ),
    CredentialType(
        name="azure",
        meaning="a storage account of Azure",
        fields=(
            CredentialField(name="account", meaning="its name"),
            CredentialField(name="key", meaning="its key"),
            CredentialField(name="endpoint", meaning="its server, Azure's by default"),
        ),
        needs=(("account",), ("key",)),
        untestable="its tasks tell",
    ),
    CredentialType(
        name="aws",
        meaning="an account of AWS, for its secrets",
        fields=(
            *_ACCESS,
            CredentialField(name="session_token", meaning="of temporary keys"),
        ),
        needs=(("access_key",), ("secret_key",), ("region",)),
        tested_by="a question to STS: whose keys they are",
    ),
    CredentialType(
        name="vault",
        meaning="a server that speaks as HashiCorp Vault does",
        fields=(
            CredentialField(name="url", meaning="its address"),
            CredentialField(name="token", meaning="a token of it"),
        ),
        needs=(("url",), ("token",)),
        tested_by="a look-up of the token by itself",
    ),
    CredentialType(
        name="service_account",
        meaning="a key file of Google, as its fields; no tool of this release opens it",
        is_open=True,
        untestable="no tool of this release opens it",
    ),
    CredentialType(
        name="kubernetes",
        meaning="a cluster; no tool of this release opens it",
        is_open=True,
        untestable="no tool of this release opens it",
    ),
    CredentialType(
        name="generic",
        meaning="any fields, for templates and webhooks",
        is_open=True,
        untestable="nothing says what its fields open",
    ),
)
TYPES: dict[str, CredentialType] = {item.name: item for item in _TYPES}
