"""Opens what a call says of a dataset's place: a bucket by a credential, or files of a folder."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from msgspec import Struct

from noetl_contracts import codec
from noetl_playbook.model import datasets
from noetl_playbook.model.datasets import DatasetSink, DatasetSource
from noetl_storage.process.lazy_import import LazyModule
from noetl_worker.datasets.problems import DatasetProblem
from noetl_worker.domain.failures import ToolFailure, build_error
from noetl_worker.keychain.credential_vault import CredentialVault
from noetl_worker.spark.tables.store_access import StoreAddress
from noetl_worker.tools.calls.call import Call

if TYPE_CHECKING:
    from noetl_worker.datasets import address
    from noetl_worker.datasets.address import DatasetAddress
else:
    address = LazyModule("noetl_worker.datasets.address")

_KINDS = {"s3": ("s3", "minio", "aws"), "gs": ("gcs_hmac",), "abfss": ("azure",)}
_FIELDS = (
    *("endpoint", "region", "access_key", "secret_key", "session_token"),
    *("account", "key"),
)


class WebFiles(Protocol):
    """Reads files of HTTP servers, under the rules of `kind: http`."""

    async def fetch_file(self, url: str, auth: Any, call: Call) -> bytes:
        """Return the whole body; raises `ToolFailure`."""


class DatasetPlace(Struct, frozen=True, kw_only=True):
    """An address, and what opens it: the account holds secrets and stays in this process."""

    address: "DatasetAddress"
    account: Mapping[str, Any] | None = None


def get_path(dataset: DatasetSource | DatasetSink) -> str:
    """Return the path, table or warehouse that a dataset names."""
    if dataset.iceberg is not None:
        return dataset.iceberg.warehouse
    return str(dataset.path or dataset.delta)


async def open_place(
    path: str, auth: Any, *, call: Call, vault: CredentialVault, field: str
) -> DatasetPlace:
    """Return where `path` leads; `field` names it in errors. Raises `ToolFailure`."""
    if not datasets.is_bucket_path(path):
        return await _open_folder(path, call)
    if auth is None:
        kinds = _KINDS[path.partition("://")[0]]
        text = f"{field}: {path!r:.200} needs 'auth': the name of a credential of type {kinds[0]}"
        raise ToolFailure(build_error("config", text, source=call.kind))
    credential = await vault.resolve_auth(auth, call.site)
    usable = _KINDS[path.partition("://")[0]]
    if credential.kind not in usable or not credential.version:
        text = (
            f"{field}: credential '{credential.name}' is of type '{credential.kind}', and "
            f"{path!r:.200} needs one of type {' or '.join(usable)} that is stored: register it "
            "with `noetl credential put`"
        )
        raise ToolFailure(build_error("config", text, source=call.kind))
    try:
        bucket_address = address.parse_bucket_address(path, credential.name)
    except DatasetProblem as problem:
        raise ToolFailure(build_dataset_error(problem, call, field)) from problem
    account = {name: credential.fields[name] for name in _FIELDS if name in credential.fields}
    return DatasetPlace(address=bucket_address, account=account)


async def open_web_file(
    path: str, auth: Any, *, call: Call, web: WebFiles, field: str
) -> DatasetPlace:
    """Read a file of a server into memory; raises `ToolFailure`."""
    try:
        web_address = address.parse_web_address(path)
    except DatasetProblem as problem:
        raise ToolFailure(build_dataset_error(problem, call, field)) from problem
    data = await web.fetch_file(path, auth, call)
    return DatasetPlace(address=web_address, account={"data": data})


async def _open_folder(path: str, call: Call) -> DatasetPlace:
    """Bring the files of the execution, or of the organization, that a path names."""
    dataset_address = address.DatasetAddress(scheme="file", path=path)
    static = dataset_address.static_path
    if static == path.rstrip("/"):
        name = call.task_files.parse_name(static)
        local = await call.task_files.fetch_path(name)
        return DatasetPlace(address=address.build_local_address(local, name.path))
    if not static:
        local = await call.task_files.fetch_folder()
        folder = address.DatasetAddress(scheme="file", path=f"{local}/{path}", base=f"{local}/")
        return DatasetPlace(address=folder)
    name = call.task_files.parse_name(static)
    local = await call.task_files.fetch_path(name)
    pattern = path[len(static) :]
    return DatasetPlace(address=address.build_local_address(local, name.path, pattern))


def check_reach(
    place: DatasetPlace, home: StoreAddress, *, field: str, call: Call, is_near: bool
) -> None:
    """Refuse a place that executors cannot open; raises `ToolFailure`.

    `is_near` says that executors are on this machine.
    """
    if place.address.scheme == "web":
        text = (
            f"{field}: executors read no files of servers: give the file to kind duckdb, to kind "
            "spark as one of its inputs, or to a transfer without 'engine'"
        )
        raise ToolFailure(build_error("config", text, source=call.kind))
    if place.account is None and not is_near:
        text = (
            f"{field}: executors on other machines do not reach files of the execution: name a "
            "path in a bucket, as s3://bucket/folder/"
        )
        raise ToolFailure(build_error("config", text, source=call.kind))
    if place.account is not None and home.is_in_process:
        text = (
            f"{field}: Spark's executors open buckets by credentials in the payload store, and "
            "this worker's store is in its memory: set NOETL_WORKER_PAYLOAD_URL"
        )
        raise ToolFailure(build_error("config", text, source=call.kind))


def build_dataset_error(problem: DatasetProblem, call: Call, field: str) -> Any:
    """Turn what a dataset has said into the task's error."""
    details = {"checks": codec.to_builtins(problem.checks)} if problem.checks else None
    text = f"{field}: {problem.message}"
    return build_error(problem.kind, text, details=details, source=call.kind)
