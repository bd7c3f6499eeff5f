"""The wrapped keys of tenants as objects of the payload store, beside what they seal."""

from datetime import datetime

from noetl_storage.payloads import object_keys
from noetl_storage.payloads.objects import Objects
from noetl_storage.ports.payload_ports import Owner


class StoredTenantKeys:
    """Keeps keys under `tenant/<t>/org/<o>/keys/`; calls block, and raise errors of storage."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects

    def list_key_ids(self, owner: Owner) -> list[str]:
        """Return the ids of an owner's keys, the oldest first."""
        prefix = object_keys.build_tenant_key_prefix(owner)
        with self._objects.translate_errors(prefix):
            objects = list(self._objects.iterate_objects_under(prefix))
        return sorted(object_info.key.removeprefix(prefix) for object_info in objects)

    def read_key(self, owner: Owner, key_id: str) -> bytes | None:
        """Return a wrapped key, or None."""
        key = object_keys.build_tenant_key_prefix(owner) + key_id
        try:
            with self._objects.translate_errors(key):
                return self._objects.read_object(key)
        except KeyError:
            return None

    def find_made_at(self, owner: Owner, key_id: str) -> datetime | None:
        """Return when a key was written, or None."""
        key = object_keys.build_tenant_key_prefix(owner) + key_id
        with self._objects.translate_errors(key):
            object_info = self._objects.find_object(key)
        return None if object_info is None else object_info.modified_at

    def create_key(self, owner: Owner, key_id: str, data: bytes) -> None:
        """Write a wrapped key; its id is new by its random part."""
        key = object_keys.build_tenant_key_prefix(owner) + key_id
        with self._objects.translate_errors(key):
            self._objects.store_object_once(key, data)

    def delete_key(self, owner: Owner, key_id: str) -> None:
        """Remove a key for good."""
        key = object_keys.build_tenant_key_prefix(owner) + key_id
        with self._objects.translate_errors(key):
            self._objects.delete_object(key)
