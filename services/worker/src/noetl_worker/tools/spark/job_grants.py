"""Which credentials the job of a Spark task names, and the request with what opens them."""

from msgspec import structs

from noetl_worker.datasets.address import DatasetAddress
from noetl_worker.spark.grants.job_grant import JobGrant
from noetl_worker.spark.grants.store_policy import PrefixAccess
from noetl_worker.spark.tables.dataset_plans import FileInput
from noetl_worker.spark.task_request import Input, QueryInput, SparkRequest
from noetl_worker.tools.spark.grant_maker import GrantNeed


def list_request_needs(ask: SparkRequest) -> list[GrantNeed]:
    """List what a task's executors open."""
    needs = [need for source in ask.inputs.values() for need in list_input_needs(source)]
    if ask.stream is not None:
        needs += list_address_needs(ask.stream.address, is_written=False)
    if ask.target is not None:
        needs += list_address_needs(ask.target.address, is_written=True)
    if ask.table is not None:
        needs.append(GrantNeed(credential=ask.table.writer.credential))
    return needs


def list_input_needs(source: Input) -> list[GrantNeed]:
    """List what opens one input."""
    match source:
        case FileInput(plan=plan):
            return list_address_needs(plan.address, is_written=False)
        case QueryInput(options=options):
            return [GrantNeed(credential=options["credential"])]
        case _:
            return []


def list_address_needs(address: DatasetAddress, *, is_written: bool) -> list[GrantNeed]:
    """List what opens a dataset; files of the execution need nothing."""
    if address.credential is None:
        return []
    access = PrefixAccess(bucket=address.bucket, key=address.static_path, is_written=is_written)
    return [GrantNeed(credential=address.credential, access=access)]


def with_grant(ask: SparkRequest, grant: JobGrant) -> SparkRequest:
    """Return a request whose functions carry a grant to executors."""
    home = ask.plan.home.with_grant(grant)
    if ask.table is not None:
        ask.table.writer.accept_grant(grant)
    return structs.replace(
        ask,
        plan=structs.replace(ask.plan, home=home),
        target=None if ask.target is None else structs.replace(ask.target, home=home),
        stream=None if ask.stream is None else structs.replace(ask.stream, home=home),
    )
