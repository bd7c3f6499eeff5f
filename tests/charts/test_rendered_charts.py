"""Every chart as Helm renders it: valid, locked down, and told only what services know."""

import importlib
import re
from pathlib import Path
from typing import Any

import helm_python
import kubernetes_validate
import msgspec
import pytest
import yaml
from tests.support import charts
from tests.support.charts import CHARTS, SERVICES, UMBRELLA, pick_pods, render_chart

from noetl_chassis import settings as chassis_settings
from noetl_chassis.observability import names
from noetl_contracts.commands import worker_pools
from noetl_messaging.streams import topology

KUBERNETES = "1.33"
CUSTOM = {"ScaledObject", "PodMonitor", "PrometheusRule"}
# Everything that a release may switch on.
FULL: dict[str, dict[str, Any]] = {
    "worker": {
        "podMonitor": {"enabled": True},
        "scaling": {"enabled": True},
        "spark": {"onKubernetes": True},
        "containers": {"onKubernetes": True},
        "networkPolicy": {"apiServer": [{"ipBlock": {"cidr": "10.0.0.1/32"}}]},
    },
    "platform": {"prometheusRule": {"enabled": True}, "admin": {"enabled": True}},
}
COMMON: dict[str, Any] = {
    "image": {"registry": "ghcr.io/owner", "tag": "1.2.3"},
    "imagePullSecrets": [{"name": "registry"}],
    "nodeSelector": {"kubernetes.io/arch": "amd64"},
    "tolerations": [{"key": "spot", "operator": "Exists"}],
    "extraEnvironment": [{"name": "TZ", "value": "UTC"}],
    "podMonitor": {"enabled": True},
}
each_chart = pytest.mark.parametrize("chart", CHARTS)
each_service = pytest.mark.parametrize("service", SERVICES)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return charts.copy_charts(tmp_path_factory.mktemp("charts"))


def full_values(chart: str) -> dict[str, Any]:
    common = (
        COMMON
        if chart in SERVICES
        else {name: COMMON[name] for name in ("image", "imagePullSecrets")}
    )
    return common | FULL.get(chart, {})


def all_renderings(folder: Path, chart: str) -> list[charts.Manifest]:
    return render_chart(folder, chart) + render_chart(folder, chart, full_values(chart))


@each_chart
def test_a_chart_renders_to_what_kubernetes_takes(folder: Path, chart: str) -> None:
    manifests = all_renderings(folder, chart)
    assert manifests
    for manifest in manifests:
        if manifest["kind"] not in CUSTOM:
            kubernetes_validate.validate(manifest, KUBERNETES, strict=True)


def test_the_umbrella_holds_the_same_as_its_charts(folder: Path) -> None:
    whole = render_chart(folder, UMBRELLA)
    parts = [manifest for chart in CHARTS for manifest in render_chart(folder, chart)]
    names = sorted((item["kind"], item["metadata"]["name"]) for item in whole)
    assert names == sorted((part["kind"], part["metadata"]["name"]) for part in parts)
    without = render_chart(folder, UMBRELLA, {"reaper": {"enabled": False}})
    assert "demo-reaper" not in {item["metadata"]["name"] for item in without}


@each_chart
def test_helm_finds_nothing_to_say(folder: Path, chart: str) -> None:
    report = helm_python.lint(folder / chart, {}, strict=True, kube_version=f"v{KUBERNETES}.0")
    messages = [message for message in report["messages"] if message["severity"] > 1]
    assert messages == []
    assert report["errors"] == []


@each_chart
def test_a_misspelt_value_is_refused(folder: Path, chart: str) -> None:
    for wrong in ({"imagee": {"tag": "1"}}, {"image": {"tagg": "1"}}):
        with pytest.raises(helm_python.HelmError, match=r"imagee|tagg"):
            render_chart(folder, chart, wrong)


def test_a_misspelt_chart_of_the_umbrella_is_refused(folder: Path) -> None:
    for wrong in ({"workers": {"replicas": 5}}, {"worker": {"replcas": 5}}):
        with pytest.raises(helm_python.HelmError, match=r"workers|replcas"):
            render_chart(folder, UMBRELLA, wrong)


@each_service
def test_a_misspelt_setting_is_refused(folder: Path, service: str) -> None:
    for wrong in ({"settings": {"shardCuont": 8}}, {"secrets": {"natsUrll": "x"}}):
        with pytest.raises(helm_python.HelmError, match=r"shardCuont|natsUrll"):
            render_chart(folder, service, wrong)


@each_chart
def test_a_pod_has_no_right_and_no_word_that_it_does_not_need(folder: Path, chart: str) -> None:
    pods = pick_pods(all_renderings(folder, chart))
    assert pods
    for pod in pods:
        assert pod["enableServiceLinks"] is False
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        is_driver = pod.get("serviceAccountName", "").endswith("-spark")
        assert pod["automountServiceAccountToken"] is is_driver
        (container,) = pod["containers"]
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert container["resources"]["requests"]["cpu"]
        assert container["resources"]["limits"]["memory"]


@each_chart
def test_no_password_is_rendered(folder: Path, chart: str) -> None:
    manifests = all_renderings(folder, chart)
    assert "Secret" not in {manifest["kind"] for manifest in manifests}
    for pod in pick_pods(manifests):
        for variable in pod["containers"][0].get("env", []):
            if re.search(r"(DSN|NATS_URL|_KEY|PASSWORD|SECRET|TOKEN_SHA256)$", variable["name"]):
                assert "secretKeyRef" in variable["valueFrom"], variable["name"]


@each_service
def test_a_service_starts_with_what_its_pod_is_told(folder: Path, service: str) -> None:
    """Read the rendered environment as the service reads it; numbers of a million are whole."""
    module = importlib.import_module(f"noetl_{service}.settings")
    large = "payloadMemoryBytes" if service == "worker" else "tenantReadS"
    values = {"settings": {large: 2_000_000}} if service in ("worker", "reaper") else {}
    pod, _ = pick_pods(render_chart(folder, service, values))
    environ: dict[str, str] = {}
    for variable in pod["containers"][0]["env"]:
        source = variable.get("valueFrom", {})
        if "fieldRef" in source:
            is_number = "index" in source["fieldRef"]["fieldPath"]
            environ[variable["name"]] = "0" if is_number else "name-0"
        elif "secretKeyRef" in source:
            environ[variable["name"]] = "" if source["secretKeyRef"].get("optional") else "x://y"
        else:
            environ[variable["name"]] = variable["value"]
    prefix = f"NOETL_{service.upper()}_"
    loaded = chassis_settings.load_settings(module.Settings, prefix=prefix, environ=environ)
    names = {field.name for field in msgspec.structs.fields(module.Settings)}
    assert {name.removeprefix(prefix).lower() for name in environ} <= names
    if values:
        name = re.sub(r"([A-Z])", r"_\1", large).lower()
        assert getattr(loaded, name) == 2_000_000


def test_the_jobs_are_told_whole_numbers(folder: Path) -> None:
    jobs = render_chart(folder, "platform", {"topology": {"leaseS": 2_000_000}})
    told = [
        variable.get("value")
        for pod in pick_pods(jobs)
        for variable in pod["containers"][0]["env"]
        if variable["name"] == "NOETL_MESSAGING_LEASE_S"
    ]
    assert told == ["2000000"]


@each_chart
def test_an_image_is_named_as_the_release_publishes_it(folder: Path, chart: str) -> None:
    (tags,) = re.findall(
        r"(?m)^\s+tags: (\$.+)$", (charts.ROOT / ".github/workflows/images.yaml").read_text()
    )
    assert tags.endswith(":${{ steps.version.outputs.version }}")
    declared = yaml.safe_load((charts.HELM / chart / "Chart.yaml").read_text())["appVersion"]
    assert re.fullmatch(r"\d+\.\d+\.\d+", declared)
    names = {chart} if chart in SERVICES else {"reaper", "cli"}
    for pod in pick_pods(render_chart(folder, chart)):
        assert pod["containers"][0]["image"] in {f"noetl-{name}:{declared}" for name in names}
    for pod in pick_pods(render_chart(folder, chart, full_values(chart))):
        shown = pod["containers"][0]["image"]
        assert shown in {f"ghcr.io/owner/noetl-{name}:1.2.3" for name in names}
        assert pod["imagePullSecrets"] == [{"name": "registry"}]


@each_chart
def test_a_digest_wins_over_a_tag(folder: Path, chart: str) -> None:
    digest = f"sha256:{'0' * 64}"
    image = {"registry": "ghcr.io/owner", "tag": "1.2.3", "digest": digest}
    name = chart if chart in SERVICES else "reaper"
    for pod in pick_pods(render_chart(folder, chart, {"image": image})):
        assert pod["containers"][0]["image"] == f"ghcr.io/owner/noetl-{name}@{digest}"


def variables_of(pod: charts.Manifest) -> dict[str, Any]:
    return {item["name"]: item.get("value") for item in pod["containers"][0]["env"]}


def test_answers_go_to_the_planner_of_the_release_or_to_the_one_that_is_named(
    folder: Path,
) -> None:
    whole = pick_pods(render_chart(folder, UMBRELLA))
    name = "NOETL_WORKER_CALLBACK_URL"
    (told,) = [variables_of(pod)[name] for pod in whole if name in str(pod)]
    assert told == "http://demo-planner.runs.svc:8080"
    own = pick_pods(render_chart(folder, "worker", {"settings": {"callbackUrl": "https://api"}}))
    assert variables_of(own[0])[name] == "https://api"
    with pytest.raises(helm_python.HelmError, match=r"settings\.callbackUrl: name the planner"):
        render_chart(folder, "worker", {"settings": {"callbackUrl": ""}})


@pytest.mark.parametrize("may_call_back", [False, True])
def test_a_container_task_reaches_the_planner_where_it_may_answer(
    folder: Path, *, may_call_back: bool
) -> None:
    values = {
        "containers": {"onKubernetes": True, "mayCallBack": may_call_back},
        "networkPolicy": {"apiServer": [{"ipBlock": {"cidr": "10.0.0.1/32"}}]},
    }
    (policy,) = [
        item
        for item in render_chart(folder, "worker", values)
        if item["metadata"]["name"].endswith("-tasks-outside")
    ]
    planner = find(render_chart(folder, "planner"), "Deployment")
    labels = planner["spec"]["template"]["metadata"]["labels"]
    ways = [
        rule["ports"]
        for rule in policy["spec"]["egress"]
        for peer in rule["to"]
        if (wanted := peer.get("podSelector", {}).get("matchLabels"))
        and wanted.items() <= labels.items()
    ]
    assert ways == ([[{"port": 8080}]] if may_call_back else [])


def test_repairs_are_a_pattern_that_never_runs_by_itself(folder: Path) -> None:
    values = {"admin": {"enabled": True, "payloadUrl": "s3://noetl"}}
    job = find(render_chart(folder, "platform", values), "CronJob")
    assert job["spec"]["suspend"] is True
    pod = job["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    assert pod["containers"][0]["args"] == ["projection", "rebuild", "--all"]
    told = variables_of(pod)
    assert told["NOETL_PROJECTOR_PAYLOAD_URL"] == "s3://noetl"
    secret = pod["containers"][0]["env"][
        [item["name"] for item in pod["containers"][0]["env"]].index("NOETL_PROJECTOR_POSTGRES_DSN")
    ]["valueFrom"]["secretKeyRef"]
    assert (secret["name"], secret["optional"]) == ("noetl-projector", False)
    assert not [one for one in render_chart(folder, "platform") if one["kind"] == "CronJob"]


def find(manifests: list[charts.Manifest], kind: str) -> charts.Manifest:
    (found,) = [manifest for manifest in manifests if manifest["kind"] == kind]
    return found


def test_workers_keep_their_names_and_are_scaled_under_them(folder: Path) -> None:
    manifests = render_chart(folder, "worker")
    workload, scaled = find(manifests, "StatefulSet"), find(manifests, "ScaledObject")
    assert scaled["spec"]["scaleTargetRef"] == {
        "kind": "StatefulSet",
        "name": workload["metadata"]["name"],
    }
    assert "replicas" not in workload["spec"]
    service = find(manifests, "Service")
    assert workload["spec"]["serviceName"] == service["metadata"]["name"]
    assert service["spec"]["clusterIP"] == "None"
    pod = workload["spec"]["template"]["spec"]
    instance = next(
        item for item in pod["containers"][0]["env"] if item["name"] == "NOETL_WORKER_INSTANCE"
    )
    assert instance["valueFrom"]["fieldRef"]["fieldPath"] == "metadata.name"
    mounts = {item["mountPath"]: item["name"] for item in pod["containers"][0]["volumeMounts"]}
    volume = next(item for item in pod["volumes"] if item["name"] == mounts["/dev/shm"])  # noqa: S108 - where the pod shares memory
    assert volume["emptyDir"] == {"medium": "Memory", "sizeLimit": "1Gi"}


def test_an_autoscaler_asks_the_planner_for_each_lane(folder: Path) -> None:
    settings = {"pool": "gpu", "lanes": "io"}
    scaled = find(render_chart(folder, "worker", {"settings": settings}), "ScaledObject")
    asked = [trigger["metadata"] for trigger in scaled["spec"]["triggers"]]
    assert {item["type"] for item in scaled["spec"]["triggers"]} == {"metrics-api"}
    assert {item["url"] for item in asked} == {charts.BACKLOG_URL}
    metric = names.FRAME_BACKLOG.name
    assert [item["valueLocation"] for item in asked] == [
        f'{metric}{{pool="gpu",lane="{lane}"}}' for lane in worker_pools.IO_LANES
    ]
    # One command that waits wakes a pool of none.
    assert {item["activationTargetValue"] for item in asked} == {"0"}


def test_an_autoscaler_of_the_umbrella_asks_its_own_planner(folder: Path) -> None:
    whole = render_chart(folder, UMBRELLA)
    scaled = find(whole, "ScaledObject")
    asked = {trigger["metadata"]["url"] for trigger in scaled["spec"]["triggers"]}
    services = [item["metadata"]["name"] for item in whole if item["kind"] == "Service"]
    assert asked == {"http://demo-planner.runs.svc:9090/metrics"}
    assert "demo-planner" in services


def test_workers_apart_from_a_planner_are_told_where_it_counts(folder: Path) -> None:
    """A wrong guess would hold them at `replicas` for ever, and nobody would see why."""
    with pytest.raises(helm_python.HelmError, match=r"scaling\.backlogUrl: name the metrics"):
        render_chart(folder, "worker", {"scaling": {"backlogUrl": ""}})
    for scaling in ({"enabled": False}, {"monitoringEndpoint": "nats.nats.svc:8222"}):
        assert render_chart(folder, "worker", {"scaling": {"backlogUrl": "", **scaling}})


def test_a_long_cooldown_is_no_invalid_autoscaler(folder: Path) -> None:
    spec = find(render_chart(folder, "worker", {"scaling": {"cooldownS": 7200}}), "ScaledObject")[
        "spec"
    ]
    behavior = spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
    # Kubernetes refuses more.
    assert behavior["scaleDown"] == {"stabilizationWindowSeconds": 3600}
    assert spec["cooldownPeriod"] == 7200


@pytest.mark.parametrize(
    ("values", "is_tested"),
    [
        ({"scaling": {"replicasMin": 0}}, False),
        ({"scaling": {"enabled": False}, "replicas": 0}, False),
        ({"scaling": {"replicasMin": 1}, "replicas": 0}, True),
        ({"scaling": {"enabled": False, "replicasMin": 0}}, True),
    ],
)
def test_a_pool_that_may_have_no_worker_is_not_asked_by_a_test(
    folder: Path, values: dict[str, Any], *, is_tested: bool
) -> None:
    kinds = {item["kind"] for item in render_chart(folder, "worker", values)}
    assert ("Pod" in kinds) is is_tested


def test_an_autoscaler_looks_at_queues_where_it_is_told_their_server(folder: Path) -> None:
    scaling = {"monitoringEndpoint": "nats.nats.svc:8222", "consumers": ["worker-default-io-t1"]}
    scaled = find(render_chart(folder, "worker", {"scaling": scaling}), "ScaledObject")
    triggers = scaled["spec"]["triggers"]
    assert {trigger["type"] for trigger in triggers} == {"nats-jetstream"}
    consumers = [topology.build_worker_consumer("default", lane) for lane in worker_pools.LANES]
    assert [trigger["metadata"]["consumer"] for trigger in triggers] == [
        *consumers,
        "worker-default-io-t1",
    ]


@each_service
def test_a_release_is_tested_under_the_name_of_its_service(folder: Path, service: str) -> None:
    manifests = render_chart(folder, service)
    tested, called = find(manifests, "Pod"), find(manifests, "Service")
    assert tested["metadata"]["annotations"]["helm.sh/hook"] == "test"
    (container,) = tested["spec"]["containers"]
    assert container["command"][-1] == f"http://{called['metadata']['name']}:9090/readyz"
    # No Service counts it among its pods.
    assert not called["spec"]["selector"].items() <= tested["metadata"]["labels"].items()


@each_service
def test_an_api_without_its_payload_store_still_answers(folder: Path, service: str) -> None:
    manifests = render_chart(folder, service)
    (workload,) = [item for item in manifests if item["kind"] in {"Deployment", "StatefulSet"}]
    (container,) = workload["spec"]["template"]["spec"]["containers"]
    asked = container["readinessProbe"]["httpGet"]["path"]
    assert asked == ("/readyz?exclude=store" if service == "planner" else "/readyz")


def test_no_job_outlives_its_release(folder: Path) -> None:
    jobs = [item for item in render_chart(folder, "platform") if item["kind"] == "Job"]
    assert len(jobs) == 2
    for job in jobs:
        # Helm forgets what a hook made: nothing else would remove it.
        policy = job["metadata"]["annotations"]["helm.sh/hook-delete-policy"]
        assert set(policy.split(",")) == {"before-hook-creation", "hook-succeeded"}


@each_service
def test_a_policy_selects_the_pods_of_its_service_and_refuses_the_rest(
    folder: Path, service: str
) -> None:
    manifests = render_chart(folder, service)
    policy, budget = find(manifests, "NetworkPolicy"), find(manifests, "PodDisruptionBudget")
    (workload,) = [
        manifest for manifest in manifests if manifest["kind"] in ("Deployment", "StatefulSet")
    ]
    selected = workload["spec"]["selector"]["matchLabels"]
    assert policy["spec"]["podSelector"]["matchLabels"] == selected
    assert budget["spec"]["selector"]["matchLabels"] == selected
    assert policy["spec"]["policyTypes"] == ["Ingress", "Egress"]
    labels = workload["spec"]["template"]["metadata"]["labels"]
    assert selected.items() <= labels.items()
    reaches = {
        port.get("port") for rule in policy["spec"]["egress"] for port in rule.get("ports", [])
    }
    assert (5432 in reaches) is (service != "worker")


def test_container_tasks_have_no_more_rights_and_ways_than_they_need(folder: Path) -> None:
    values = {
        "containers": {"onKubernetes": True},
        "networkPolicy": {"apiServer": [{"ipBlock": {"cidr": "10.0.0.1/32"}}]},
    }
    found = {
        (one["kind"], one["metadata"]["name"]): one
        for one in render_chart(folder, "worker", values)
    }
    rights = {
        resource: set(rule["verbs"])
        for (kind, _), one in found.items()
        if kind == "Role"
        for rule in one["rules"]
        for resource in rule["resources"]
    }
    assert rights == {
        "jobs": {"get", "list", "create", "patch", "delete"},
        "secrets": {"create"},
        "pods": {"get", "list", "deletecollection"},
        "pods/log": {"get"},
    }
    policies = {
        name.rpartition("-")[2]: one["spec"]
        for (kind, name), one in found.items()
        if kind == "NetworkPolicy"
    }
    task = {"app.kubernetes.io/name": "noetl-container-task"}
    assert policies["tasks"] == {
        "podSelector": {"matchLabels": task},
        "policyTypes": ["Ingress", "Egress"],
    }
    outside = policies["outside"]
    assert outside["podSelector"]["matchLabels"] == {**task, "noetl.io/network": "true"}
    assert "4222" not in str(outside["egress"])
    assert "ServiceAccount" in {kind for kind, _ in found}
    plain = render_chart(folder, "worker")
    assert not {"Role", "ServiceAccount"} & {one["kind"] for one in plain}


def test_alerts_are_those_of_the_repository(folder: Path) -> None:
    rule = find(render_chart(folder, "platform", full_values("platform")), "PrometheusRule")
    alerts = (charts.ROOT / "deploy/observability/alerts.yaml").read_text()
    assert rule["spec"] == yaml.safe_load(alerts)


@pytest.mark.parametrize("lane", ["spark", "containers"])
def test_an_api_server_that_nobody_names_opens_no_way_to_everywhere(
    folder: Path, lane: str
) -> None:
    with pytest.raises(Exception, match="name the API server's addresses"):
        render_chart(folder, "worker", {lane: {"onKubernetes": True}})
