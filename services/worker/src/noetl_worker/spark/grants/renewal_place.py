"""Where a worker leaves renewed grants for executors: a file, or an object they may read."""

import contextlib
from pathlib import Path
from typing import Any, Protocol

import boto3
import botocore.exceptions
from botocore.config import Config

from noetl_chassis import identity
from noetl_contracts.ids import ExecutionId
from noetl_contracts.transient_objects import build_grant_name
from noetl_worker.domain.unit_identity import UnitScope
from noetl_worker.spark.grants.payload_scope import StoreLogin, build_named_key

# The longest that S3 takes.
_SIGNED_S = 7 * 24 * 3600


class RenewalPlace(Protocol):
    """A place for the renewed grants of one job; its methods block and raise `OSError`."""

    @property
    def address(self) -> str:
        """Return how executors find it."""

    def write_data(self, data: bytes) -> None:
        """Replace what is there."""

    def remove_data(self) -> None:
        """Remove what is there, if anything is."""


class FilePlace:
    """A file, for executors of this machine."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / identity.mint_token()

    @property
    def address(self) -> str:
        """Return the path."""
        return str(self._path)

    def write_data(self, data: bytes) -> None:
        """Replace the file whole."""
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        part = self._path.with_suffix(".part")
        part.touch(mode=0o600)
        part.write_bytes(data)
        part.replace(self._path)

    def remove_data(self) -> None:
        """Remove the file."""
        self._path.unlink(missing_ok=True)


class ObjectPlace:
    """An object of the payload store, which executors read by an address that the worker signs.

    Tasks that start late read it, too: their own first keys may have ended.
    """

    def __init__(self, login: StoreLogin, site: UnitScope) -> None:
        account = login.build_account()
        name = build_grant_name(ExecutionId(site.execution_id), identity.mint_token())
        self._bucket = login.bucket
        self._key = build_named_key(name, site)
        self._client: Any = boto3.session.Session(
            aws_access_key_id=login.access_key,
            aws_secret_access_key=login.secret_key,
            region_name=account["region"],
        ).client(
            "s3",
            endpoint_url=account["endpoint"] or None,
            config=Config(signature_version="s3v4", s3={"addressing_style": "path"}),
        )

    @property
    def address(self) -> str:
        """Return the signed address."""
        address: str = self._client.generate_presigned_url(
            "get_object", Params={"Bucket": self._bucket, "Key": self._key}, ExpiresIn=_SIGNED_S
        )
        return address

    def write_data(self, data: bytes) -> None:
        """Replace the object."""
        try:
            self._client.put_object(Bucket=self._bucket, Key=self._key, Body=data)
        except (botocore.exceptions.ClientError, botocore.exceptions.BotoCoreError) as problem:
            raise OSError(f"the payload store: {type(problem).__name__}") from problem

    def remove_data(self) -> None:
        """Remove the object; one that stays is removed with what its execution has left."""
        with contextlib.suppress(
            botocore.exceptions.ClientError, botocore.exceptions.BotoCoreError
        ):
            self._client.delete_object(Bucket=self._bucket, Key=self._key)


def open_renewal_place(
    login: StoreLogin, site: UnitScope, *, folder: Path, is_near: bool
) -> RenewalPlace | None:
    """Return where executors find renewed grants, None where there is no such place."""
    if is_near:
        return FilePlace(folder)
    return ObjectPlace(login, site) if login.is_s3 and login.access_key else None
