"""What a worker makes for a container task is what Kubernetes takes."""

from typing import Any

import kubernetes_validate
import pytest
from tests.support.calls import call_of

from noetl_worker.tools.container import plan
from noetl_worker.tools.container.archive import WorkFile
from noetl_worker.tools.container.kubernetes import job as kubernetes_job
from noetl_worker.tools.container.plan import ContainerLimits

KUBERNETES = "1.33"
FILES = [WorkFile(path="in/a.txt", content=b"a"), WorkFile(path="run.sh", content=b"#!/bin/sh")]


@pytest.mark.parametrize("files", [[], FILES])
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"command": ["sh"], "args": ["-c", "true"], "env": {"A": 1}, "network": True},
        {"service_account": "robot", "resources": {"limits": {"memory": "1Gi", "cpu": "250m"}}},
    ],
)
def test_a_job_and_its_secret_fit_their_schemas(
    fields: dict[str, Any], files: list[WorkFile]
) -> None:
    fields = {"image": "alpine:3.20", **fields}
    limits = ContainerLimits(images=("*",), is_network_by_task=True, accounts=("robot",))
    call = call_of("container", fields)
    spec = plan.build_spec(call, fields, limits, owner="node:/folder", now_s=1.0)
    job = kubernetes_job.build_job(spec, files)
    secret = kubernetes_job.build_secret(spec, files, {"metadata": {"uid": "u"}})
    for manifest in (job, secret):
        kubernetes_validate.validate(manifest, KUBERNETES, strict=True)
