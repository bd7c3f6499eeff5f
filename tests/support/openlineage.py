"""OpenLineage's own classes, generated from its schema, as the judge of our events.

Each facet must be one that they know, under its name, with the fields that they require and none
that they do not have; what they write of it must be what we wrote.
"""

from typing import Any
from uuid import UUID

from openlineage.client.generated import (
    base,
    data_quality_assertions_dataset,
    dataset_version_dataset,
    error_message_run,
    job_type_job,
    output_statistics_output_dataset,
    parent_run,
    schema_dataset,
    sql_job,
    symlinks_dataset,
)
from openlineage.client.serde import Serde
from tests.support import openlineage_schema

from noetl_contracts import codec

FACETS: dict[str, dict[str, Any]] = {
    "run": {
        "parent": parent_run.ParentRunFacet,
        "errorMessage": error_message_run.ErrorMessageRunFacet,
    },
    "job": {"jobType": job_type_job.JobTypeJobFacet, "sql": sql_job.SQLJobFacet},
    "dataset": {
        "schema": schema_dataset.SchemaDatasetFacet,
        "version": dataset_version_dataset.DatasetVersionDatasetFacet,
        "symlinks": symlinks_dataset.SymlinksDatasetFacet,
    },
    "input": {
        "dataQualityAssertions": data_quality_assertions_dataset.DataQualityAssertionsDatasetFacet
    },
    "output": {
        "outputStatistics": output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet
    },
}
INNER: dict[str, Any] = {
    "run": parent_run.Run,
    "job": parent_run.Job,
    "fields": schema_dataset.SchemaDatasetFacetFields,
    "assertions": data_quality_assertions_dataset.Assertion,
    "identifiers": symlinks_dataset.Identifier,
}

SCHEMA = openlineage_schema.validator(FACETS)


def check(body: bytes | str) -> dict[str, Any]:
    """Return a run event that fits the schema, and that OpenLineage's classes write alike."""
    event: dict[str, Any] = codec.decode_json(body)
    SCHEMA.validate(event)
    built = base.RunEvent(
        eventType=base.EventType(event["eventType"]),
        eventTime=event["eventTime"],
        run=base.Run(runId=event["run"]["runId"], facets=_facets("run", event["run"]["facets"])),
        job=base.Job(
            namespace=event["job"]["namespace"],
            name=event["job"]["name"],
            facets=_facets("job", event["job"]["facets"]),
        ),
        inputs=[
            base.InputDataset(
                **_dataset(item), inputFacets=_facets("input", item.get("inputFacets", {}))
            )
            for item in event["inputs"]
        ],
        outputs=[
            base.OutputDataset(
                **_dataset(output), outputFacets=_facets("output", output["outputFacets"])
            )
            for output in event["outputs"]
        ],
        producer=event["producer"],
    )
    assert event["schemaURL"] == built.schemaURL
    assert UUID(event["run"]["runId"]).version == 5
    assert _bare(codec.decode_json(Serde.to_json(built))) == _bare(event)
    return event


def _dataset(one: dict[str, Any]) -> dict[str, Any]:
    assert one.keys() <= {"namespace", "name", "facets", "inputFacets", "outputFacets"}
    return {
        "namespace": one["namespace"],
        "name": one["name"],
        "facets": _facets("dataset", one["facets"]),
    }


def _facets(kind: str, found: dict[str, Any]) -> dict[str, Any]:
    return {name: _facet(FACETS[kind][name], body) for name, body in found.items()}


def _facet(of: Any, body: dict[str, Any]) -> Any:
    values = dict(body)
    producer, address = values.pop("_producer"), values.pop("_schemaURL")
    built = of(**{name: _inner(name, value) for name, value in values.items()}, producer=producer)
    assert address == built._schemaURL
    return built


def _inner(name: str, value: Any) -> Any:
    if name == "root":
        return parent_run.Root(
            run=parent_run.RootRun(**value["run"]), job=parent_run.RootJob(**value["job"])
        )
    if isinstance(value, list):
        return [INNER[name](**item) for item in value]
    return INNER[name](**value) if isinstance(value, dict) else value


def _bare(value: Any) -> Any:
    """Leave out what says nothing: their classes leave it out or write it as they like."""
    if isinstance(value, dict):
        bare = {name: _bare(item) for name, item in value.items()}
        return {name: item for name, item in bare.items() if item not in (None, {}, [])}
    return [_bare(item) for item in value] if isinstance(value, list) else value
