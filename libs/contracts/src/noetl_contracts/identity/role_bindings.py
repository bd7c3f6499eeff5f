"""Role bindings, API keys and sessions, as they are stored."""

from datetime import datetime
from enum import StrEnum

from msgspec import Struct

from noetl_contracts.identity.actors import Actor, ActorKind
from noetl_contracts.ids import OrganizationId, TenantId

# Who vouches for accounts that have API keys: this deployment itself.
LOCAL_ISSUER = "noetl"
# The organization of a binding that holds in all organizations of its tenant.
ALL_ORGANIZATIONS = OrganizationId("*")


class SubjectKind(StrEnum):
    """Whom a binding is for."""

    PERSON = "person"
    GROUP = "group"
    SERVICE_ACCOUNT = "service_account"
    WORKER = "worker"


class RoleBinding(Struct, frozen=True, kw_only=True):
    """A role for a subject at a scope.

    `issuer` is the provider that vouches for a person or group, or `noetl` for accounts with API
    keys; empty is any. `path_prefix` is a
    folder of playbooks; empty is all of them.
    """

    binding_id: str
    tenant_id: TenantId
    organization_id: OrganizationId
    subject_kind: SubjectKind
    subject: str
    role: str
    issuer: str = ""
    path_prefix: str = ""
    created_by: str = ""
    created_at: datetime | None = None


class ApiKey(Struct, frozen=True, kw_only=True):
    """An API key of a service account or a worker: everything but the key itself.

    `digest` is the SHA-256 of the whole key, whose random part has 256 bits. `created_by` is the
    name of its maker for people to read. `maker` is who that is, of a key that a key made the maker
    of the first one; None for a key of an earlier release.
    """

    key_prefix: str
    tenant_id: TenantId
    organization_id: OrganizationId
    account: str
    account_kind: SubjectKind
    digest: bytes
    created_by: str = ""
    maker: Actor | None = None
    created_at: datetime | None = None
    expires_at: datetime | None = None
    used_at: datetime | None = None
    revoked_at: datetime | None = None

    @property
    def known_maker(self) -> Actor | None:
        """Return who made the key; of one of an earlier release its name alone is known."""
        if self.maker is not None or not self.created_by:
            return self.maker
        return Actor(kind=ActorKind.UNKNOWN, id=self.created_by, name=self.created_by)

    def is_valid_at(self, moment: datetime) -> bool:
        """Tell whether the key opens anything at a moment."""
        return self.revoked_at is None and (self.expires_at is None or moment < self.expires_at)


class PersonGroups(Struct, frozen=True, kw_only=True):
    """The groups of somebody as an identity provider gave them last, and when."""

    issuer: str
    subject: str
    groups: tuple[str, ...]
    seen_at: datetime


class Session(Struct, frozen=True, kw_only=True):
    """Who signed in, and until when; `session_hash` is the SHA-256 of the secret in the cookie.

    `issuer` and `subject` name the person, `groups` are those of the identity provider at the
    sign-in.
    """

    session_hash: str
    issuer: str
    subject: str
    name: str
    email: str
    groups: tuple[str, ...]
    created_at: datetime
    expires_at: datetime
    revoked_at: datetime | None = None
