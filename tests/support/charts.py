"""Charts as Helm renders them, with their dependencies beside them."""

import shutil
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
HELM = ROOT / "deploy/helm"
SERVICES = ("planner", "worker", "projector", "outbox", "reaper")
CHARTS = (*SERVICES, "platform")
UMBRELLA = "noetl"

Manifest = dict[str, Any]

# What a chart wants to be told where it is a release of its own.
BACKLOG_URL = "http://noetl-planner.runs.svc:9090/metrics"
CALLBACK_URL = "http://noetl-planner.runs.svc:8080"


def copy_charts(folder: Path, *, source: Path = HELM) -> Path:
    """Copy every chart, each with what it depends on, as `helm dependency build` lays it."""
    shutil.copytree(source, folder, dirs_exist_ok=True)
    for chart in CHARTS:
        shutil.copytree(source / "library", folder / chart / "charts/noetl-library")
    for chart in CHARTS:
        shutil.copytree(folder / chart, folder / UMBRELLA / f"charts/noetl-{chart}")
    return folder


def render_chart(folder: Path, chart: str, values: Manifest | None = None) -> list[Manifest]:
    """Render a chart of such a folder, and parse every document."""
    values = values or {}
    if chart == "worker":
        told = {
            "scaling": {"backlogUrl": BACKLOG_URL},
            "settings": {"callbackUrl": CALLBACK_URL},
        }
        values = {
            **values,
            **{part: {**given, **values.get(part, {})} for part, given in told.items()},
        }
    import helm_python  # noqa: PLC0415 - only the lane of charts installs it

    loaded = helm_python.Chart.load(folder / chart)
    rendered = loaded.render(values, name="demo", namespace="runs", is_install=True)
    documents = [yaml.safe_load_all(text) for text in rendered.values()]
    return [found for texts in documents for found in texts if found]


def pick_pods(manifests: list[Manifest]) -> list[Manifest]:
    """Pick the pod specifications of workloads, jobs and tests."""
    templates = [
        manifest["spec"]["template"]
        for manifest in manifests
        if manifest["kind"] in ("Deployment", "StatefulSet", "Job")
    ]
    templates += [
        manifest["spec"]["jobTemplate"]["spec"]["template"]
        for manifest in manifests
        if manifest["kind"] == "CronJob"
    ]
    pods = [manifest for manifest in manifests if manifest["kind"] == "Pod"]
    return [template["spec"] for template in templates + pods]
