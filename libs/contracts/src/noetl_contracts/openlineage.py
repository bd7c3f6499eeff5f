"""OpenLineage's run events (schema 2-0-2), as they are sent to a receiver of lineage."""

from datetime import datetime
from enum import StrEnum

import msgspec
from msgspec import UNSET, Struct, UnsetType

# Who made an event or a facet; a URI, as the schema wants it.
PRODUCER = "https://noetl.io"
INTEGRATION = "NOETL"
BATCH = "BATCH"
_SPEC = "https://openlineage.io/spec"
_FACETS = f"{_SPEC}/facets"


class RunState(StrEnum):
    """What an event says of its run: one START, and one of the others at its end."""

    START = "START"
    COMPLETE = "COMPLETE"
    FAIL = "FAIL"
    ABORT = "ABORT"


class Facet(Struct, frozen=True, kw_only=True):
    """What every facet says of itself; `schema_url` is each facet's own."""

    producer: str = msgspec.field(default=PRODUCER, name="_producer")


class JobName(Struct, frozen=True, kw_only=True):
    """A job, by whose it is and what it is called."""

    namespace: str
    name: str


class RunId(Struct, frozen=True, kw_only=True, rename="camel"):
    """A run of a job, by a UUID."""

    run_id: str


class RootRun(Struct, frozen=True, kw_only=True):
    """The run that all this began with."""

    run: RunId
    job: JobName


class ParentFacet(Facet, frozen=True, kw_only=True):
    """The run that this one is a part of."""

    run: RunId
    job: JobName
    root: RootRun | UnsetType = UNSET
    schema_url: str = msgspec.field(
        default=f"{_FACETS}/1-2-0/ParentRunFacet.json#/$defs/ParentRunFacet", name="_schemaURL"
    )


class ErrorFacet(Facet, frozen=True, kw_only=True, rename="camel"):
    """What a run failed with."""

    message: str
    programming_language: str
    schema_url: str = msgspec.field(
        default=f"{_FACETS}/1-0-1/ErrorMessageRunFacet.json#/$defs/ErrorMessageRunFacet",
        name="_schemaURL",
    )


class JobTypeFacet(Facet, frozen=True, kw_only=True, rename="camel"):
    """Which kind of job of which engine it is."""

    job_type: str
    processing_type: str = BATCH
    integration: str = INTEGRATION
    schema_url: str = msgspec.field(
        default=f"{_FACETS}/2-0-4/JobTypeJobFacet.json#/$defs/JobTypeJobFacet", name="_schemaURL"
    )


class SqlFacet(Facet, frozen=True, kw_only=True):
    """The statements of a job as their author wrote them, nothing filled in."""

    query: str
    dialect: str | UnsetType = UNSET
    schema_url: str = msgspec.field(
        default=f"{_FACETS}/1-1-0/SQLJobFacet.json#/$defs/SQLJobFacet", name="_schemaURL"
    )


class SchemaField(Struct, frozen=True, kw_only=True):
    """A column."""

    name: str


class SchemaFacet(Facet, frozen=True, kw_only=True):
    """The columns of a dataset."""

    fields: list[SchemaField]
    schema_url: str = msgspec.field(
        default=f"{_FACETS}/1-2-0/SchemaDatasetFacet.json#/$defs/SchemaDatasetFacet",
        name="_schemaURL",
    )


class VersionFacet(Facet, frozen=True, kw_only=True, rename="camel"):
    """The version of a dataset: the SHA-256 of its content."""

    dataset_version: str
    schema_url: str = msgspec.field(
        default=f"{_FACETS}/1-0-1/DatasetVersionDatasetFacet.json"
        "#/$defs/DatasetVersionDatasetFacet",
        name="_schemaURL",
    )


class DatasetIdentifier(Struct, frozen=True, kw_only=True):
    """Another name of a dataset."""

    namespace: str
    name: str
    type: str


class SymlinksFacet(Facet, frozen=True, kw_only=True):
    """Where the content of a dataset lies."""

    identifiers: list[DatasetIdentifier]
    schema_url: str = msgspec.field(
        default=f"{_FACETS}/1-0-1/SymlinksDatasetFacet.json#/$defs/SymlinksDatasetFacet",
        name="_schemaURL",
    )


class OutputStatisticsFacet(Facet, frozen=True, kw_only=True, rename="camel"):
    """How much was written: rows, and bytes."""

    row_count: int | UnsetType = UNSET
    size: int | UnsetType = UNSET
    schema_url: str = msgspec.field(
        default=f"{_FACETS}/1-0-2/OutputStatisticsOutputDatasetFacet.json"
        "#/$defs/OutputStatisticsOutputDatasetFacet",
        name="_schemaURL",
    )


class Assertion(Struct, frozen=True, kw_only=True, rename="camel"):
    """A check of a dataset: its kind, whether it holds, and what was found."""

    assertion: str
    success: bool
    column: str | UnsetType = UNSET
    name: str | UnsetType = UNSET
    actual: str | UnsetType = UNSET
    content: str | UnsetType = UNSET
    content_type: str | UnsetType = UNSET


class AssertionsFacet(Facet, frozen=True, kw_only=True):
    """The checks of a dataset that a run has made."""

    assertions: list[Assertion]
    schema_url: str = msgspec.field(
        default=f"{_FACETS}/1-1-0/DataQualityAssertionsDatasetFacet.json"
        "#/$defs/DataQualityAssertionsDatasetFacet",
        name="_schemaURL",
    )


class RunFacets(Struct, frozen=True, kw_only=True, rename="camel"):
    """What is known of a run."""

    parent: ParentFacet | UnsetType = UNSET
    error_message: ErrorFacet | UnsetType = UNSET


class JobFacets(Struct, frozen=True, kw_only=True, rename="camel"):
    """What is known of a job."""

    job_type: JobTypeFacet
    sql: SqlFacet | UnsetType = UNSET


class DatasetFacets(Struct, frozen=True, kw_only=True):
    """What is known of a dataset."""

    schema: SchemaFacet | UnsetType = UNSET
    version: VersionFacet | UnsetType = UNSET
    symlinks: SymlinksFacet | UnsetType = UNSET


class OutputFacets(Struct, frozen=True, kw_only=True, rename="camel"):
    """What is known of a dataset as this run wrote it."""

    output_statistics: OutputStatisticsFacet | UnsetType = UNSET


class InputFacets(Struct, frozen=True, kw_only=True, rename="camel"):
    """What a run has found in a dataset that it reads."""

    data_quality_assertions: AssertionsFacet | UnsetType = UNSET


class InputDataset(Struct, frozen=True, kw_only=True, rename="camel"):
    """A dataset that a run reads."""

    namespace: str
    name: str
    facets: DatasetFacets = DatasetFacets()
    input_facets: InputFacets | UnsetType = UNSET


class OutputDataset(Struct, frozen=True, kw_only=True, rename="camel"):
    """A dataset that a run writes."""

    namespace: str
    name: str
    facets: DatasetFacets = DatasetFacets()
    output_facets: OutputFacets = OutputFacets()


class Run(Struct, frozen=True, kw_only=True, rename="camel"):
    """A run and what is known of it."""

    run_id: str
    facets: RunFacets = RunFacets()


class Job(Struct, frozen=True, kw_only=True):
    """A job and what is known of it."""

    namespace: str
    name: str
    facets: JobFacets


class RunEvent(Struct, frozen=True, kw_only=True, rename="camel"):
    """A change of a run's state."""

    event_type: RunState
    event_time: datetime
    run: Run
    job: Job
    inputs: list[InputDataset] = msgspec.field(default_factory=list)
    outputs: list[OutputDataset] = msgspec.field(default_factory=list)
    producer: str = PRODUCER
    schema_url: str = msgspec.field(
        default=f"{_SPEC}/2-0-2/OpenLineage.json#/$defs/RunEvent", name="schemaURL"
    )


class Dataset(Struct, frozen=True, kw_only=True, order=True):
    """A table, a file or an address, by the place that knows it and its name there."""

    namespace: str
    name: str


class StepData(Struct, frozen=True, kw_only=True):
    """What a step reads and writes besides its result, as far as its text tells.

    `uses` are the steps whose results its templates name. `checked` are its datasets by the names
    that reports of their checks have. `statements` are its SQL as written:
    templates in it are not filled in.
    """

    kind: str
    uses: tuple[str, ...] = ()
    reads: tuple[Dataset, ...] = ()
    writes: tuple[Dataset, ...] = ()
    checked: dict[str, Dataset] = {}
    statements: tuple[str, ...] = ()
    dialect: str | None = None
