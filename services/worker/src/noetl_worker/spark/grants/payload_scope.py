"""Where the payloads of one organization are, as far as its jobs read and write them."""

from typing import Any
from urllib.parse import parse_qs, urlsplit

from msgspec import Struct

from noetl_chassis.seals.payload_seal import narrow_payload_keys
from noetl_contracts.transient_objects import REJECTS, STREAMS
from noetl_storage.payloads import object_keys
from noetl_storage.ports.payload_ports import Owner
from noetl_worker.domain.unit_identity import UnitScope
from noetl_worker.spark.grants.job_grant import StoreKeys
from noetl_worker.spark.grants.store_policy import PrefixAccess

_REGION = "us-east-1"
# What executors read and write by name; credentials are not among it.
_NAMED = ("tables", REJECTS, STREAMS)


class StoreLogin(Struct, frozen=True, kw_only=True):
    """The payload store, and the worker's own keys to it."""

    url: str
    access_key: str = ""
    secret_key: str = ""
    seal_key: str = ""
    seal_file: str = ""

    def __repr__(self) -> str:
        """Show no key."""
        return "StoreLogin(...)"

    @property
    def is_local(self) -> bool:
        """Tell whether no keys open the store."""
        return self.url.startswith(("file:", "memory:"))

    @property
    def is_s3(self) -> bool:
        """Tell whether the store is S3, or speaks as it does."""
        return self.url.startswith("s3:")

    @property
    def bucket(self) -> str:
        """Return the bucket."""
        return urlsplit(self.url).netloc

    def build_own_keys(self, site: UnitScope) -> StoreKeys:
        """Return the login itself, its seals narrowed to one owner; raises `KeyUnusable`."""
        seal_key, seal_file = narrow_payload_keys(
            self.seal_key, file=self.seal_file, owner=find_owner(site)
        )
        return StoreKeys(
            access_key=self.access_key,
            secret_key=self.secret_key,
            seal_key=seal_key,
            seal_file=seal_file,
        )

    def build_account(self) -> dict[str, Any]:
        """Return the login as the fields of a credential."""
        query = {name: values[-1] for name, values in parse_qs(urlsplit(self.url).query).items()}
        return {
            "endpoint": query.get("endpoint", ""),
            "region": query.get("region", _REGION),
            "access_key": self.access_key,
            "secret_key": self.secret_key,
        }


def find_owner(site: UnitScope) -> Owner:
    """Return whose payloads a unit of work uses."""
    return Owner(tenant_id=site.tenant_id, organization_id=site.organization_id)


def build_named_key(name: str, site: UnitScope) -> str:
    """Return the key of an object that a unit of work names."""
    return f"{object_keys.build_owned_prefix(find_owner(site))}{name}"


def list_accesses(login: StoreLogin, site: UnitScope) -> list[PrefixAccess]:
    """List the folders of an organization that its jobs read and write."""
    owner = find_owner(site)
    named = object_keys.build_owned_prefix(owner)
    prefixes = [
        *object_keys.list_content_prefixes(owner),
        object_keys.build_tenant_key_prefix(owner),
        *(f"{named}{folder}/" for folder in _NAMED),
    ]
    return [
        PrefixAccess(bucket=login.bucket, key=prefix.rstrip("/"), is_written=True)
        for prefix in prefixes
    ]
