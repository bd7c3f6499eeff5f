"""What is deployed agrees with the code: names, settings, runbooks."""

import functools
import re
import tempfile
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from tests.support import composed

import noetl_messaging.settings
import noetl_outbox.settings
import noetl_planner.settings
import noetl_projector.settings
import noetl_reaper.settings
import noetl_worker.settings
from noetl_chassis import settings as chassis_settings
from noetl_chassis.observability import names
from noetl_contracts.commands import worker_pools
from noetl_messaging.streams import topology

ROOT = Path(__file__).parents[2]
HELM = ROOT / "deploy/helm"
COMPOSE = ROOT / "deploy/compose"
SETTINGS: dict[str, type[msgspec.Struct]] = {
    "planner": noetl_planner.settings.Settings,
    "worker": noetl_worker.settings.Settings,
    "projector": noetl_projector.settings.Settings,
    "outbox": noetl_outbox.settings.Settings,
    "reaper": noetl_reaper.settings.Settings,
}
STORES = ("store-gcs", "store-azure")
METRIC = re.compile(r"noetl_[a-z_]+")


def read(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


def fields(kind: type[msgspec.Struct]) -> set[str]:
    return {field.name for field in msgspec.structs.fields(kind)}


def required(kind: type[msgspec.Struct]) -> set[str]:
    return {field.name for field in msgspec.structs.fields(kind) if field.required}


def snake(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


def by_chart(service: str) -> dict[str, Any]:
    values = read(HELM / service / "values.yaml")
    settings = {snake(name): value for name, value in values["settings"].items()}
    return settings | ({"shard_count": values["replicas"]} if values.get("isSharded") else {})


@functools.cache
def made_by_compose(consumer: str) -> dict[str, str]:
    with tempfile.TemporaryDirectory() as folder:
        assert composed.make_secrets(Path(folder)).returncode == 0
        return composed.read_made(Path(folder), consumer)


def by_compose(file: str, service: str, prefix: str | None = None) -> dict[str, str]:
    environment = dict(read(COMPOSE / f"{file}.yaml")["services"][service]["environment"])
    environment |= made_by_compose(service if service in SETTINGS else "jobs")
    environment = {
        # A variable that is empty or not set counts as its default.
        name: re.sub(r"\$\{[A-Z0-9_]+:-(.*?)\}", r"\1", value)
        for name, value in environment.items()
        if service in SETTINGS or not name.startswith("NOETL_STORAGE_")
    }
    prefix = prefix or f"NOETL_{service.upper()}_"
    assert all(name.startswith(prefix) for name in environment)
    return {name.removeprefix(prefix).lower(): value for name, value in environment.items()}


@pytest.mark.parametrize("service", SETTINGS)
def test_a_chart_sets_only_what_the_service_knows_and_all_that_it_needs(service: str) -> None:
    values = read(HELM / service / "values.yaml")
    parts = ("settings", "secrets", "optionalSecrets", "fields")
    sources = [values.get(part, {}) for part in parts]
    given = {snake(name) for source in sources for name in source}
    assert given <= fields(SETTINGS[service])
    assert required(SETTINGS[service]) <= given


@pytest.mark.parametrize("service", SETTINGS)
def test_compose_sets_only_what_the_service_knows_and_all_that_it_needs(service: str) -> None:
    compose = set(by_compose("services", service))
    assert compose <= fields(SETTINGS[service])
    assert required(SETTINGS[service]) <= compose


# The name of a Secret of the cluster is none itself.
NO_SECRETS = {"spark_secret"}


@pytest.mark.parametrize("service", SETTINGS)
def test_every_secret_that_a_service_may_have_can_be_given_to_it(service: str) -> None:
    mask = chassis_settings.MASK
    names = {
        name for name in fields(SETTINGS[service]) if chassis_settings.mask_value(name, "x") == mask
    }
    values = read(HELM / service / "values.yaml")
    chart = {
        snake(name) for part in ("secrets", "optionalSecrets") for name in values.get(part, {})
    }
    assert names - NO_SECRETS <= chart
    assert names - NO_SECRETS <= set(by_compose("services", service))


# What an operator decides about how long things stay and who is told of them.
DECISIONS = {
    "reaper": {
        *("payload_url", "payload_access_key", "payload_secret_key"),
        *(name for name in fields(SETTINGS["reaper"]) if name.startswith("retention_")),
    },
    "projector": {
        *("payload_url", "payload_access_key", "payload_secret_key"),
        *("openlineage_url", "openlineage_api_key"),
    },
}


@pytest.mark.parametrize("service", DECISIONS)
def test_how_long_things_stay_and_who_is_told_can_be_set_where_it_is_deployed(service: str) -> None:
    values = read(HELM / service / "values.yaml")
    chart = {snake(name) for part in ("settings", "optionalSecrets") for name in values[part]}
    assert DECISIONS[service] <= chart
    assert DECISIONS[service] <= set(by_compose("services", service))


@pytest.mark.parametrize("service", SETTINGS)
def test_a_chart_as_it_is_makes_settings_that_load(service: str) -> None:
    values = read(HELM / service / "values.yaml")
    given = {snake(name): _shown(value) for name, value in values["settings"].items()}
    given |= {snake(name): "x://y" for name in values["secrets"]}
    prefix = f"NOETL_{service.upper()}_"
    environ = {f"{prefix}{name.upper()}": value for name, value in given.items()}
    chassis_settings.load_settings(SETTINGS[service], prefix=prefix, environ=environ)


def _shown(value: Any) -> str:
    """Write a value as the chart's `toString` does."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def test_large_numbers_are_written_whole() -> None:
    """Helm reads numbers of values files as floats, and `toString` gives large ones an exponent."""
    text = (HELM / "library/templates/_names.tpl").read_text()
    assert 'value: {{ include "noetl.text" $value | quote }}' in text
    assert text.count("toString") == 1


def test_the_topology_job_is_told_what_it_knows() -> None:
    given = {snake(name) for name in read(HELM / "platform/values.yaml")["topology"]}
    assert given <= fields(noetl_messaging.settings.Settings)


# How each reaches the server is its own.
OF_THE_CONNECTION = {"nats_url", "connect_s"}
# A projector's shards are executions' shards to others, and its own number is theirs of projectors.
OTHER_NAMES = {
    "projector": {"execution_shard_count": "shard_count", "shard_count": "projector_count"}
}
TOPOLOGY = noetl_messaging.settings.Settings


def shared(service: str) -> dict[str, str]:
    """Name the settings that the topology job has too, by its names for them."""
    names = {name: name for name in fields(SETTINGS[service])} | OTHER_NAMES.get(service, {})
    known = fields(TOPOLOGY) - OF_THE_CONNECTION
    return {name: other for name, other in names.items() if other in known}


def value_of(kind: type[msgspec.Struct], told: Mapping[str, Any], name: str) -> Any:
    default = next(item.default for item in msgspec.structs.fields(kind) if item.name == name)
    value = told.get(name, default)
    return ",".join(value) if isinstance(value, tuple) else value


@pytest.mark.parametrize("service", [service for service in SETTINGS if shared(service)])
def test_what_the_topology_is_made_of_is_told_alike_to_all_who_need_it(service: str) -> None:
    job = {
        snake(name): value
        for name, value in read(HELM / "platform/values.yaml")["topology"].items()
    }
    jobs = [job, by_compose("platform", "topology", prefix=noetl_messaging.settings.PREFIX)]
    for told, to_job in zip(
        [by_chart(service), by_compose("services", service)], jobs, strict=True
    ):
        found = {name: value_of(SETTINGS[service], told, name) for name in shared(service)}
        wanted = {
            name: value_of(TOPOLOGY, to_job, other) for name, other in shared(service).items()
        }
        assert found == wanted


def test_the_reaper_keeps_all_that_the_topology_job_makes() -> None:
    assert set(shared("reaper").values()) == fields(TOPOLOGY) - OF_THE_CONNECTION


def test_the_scaler_watches_every_lane_that_its_workers_take() -> None:
    values = read(HELM / "worker/values.yaml")
    by_host: dict[str, list[str]] = {}
    for lane in worker_pools.LANES:
        by_host.setdefault(worker_pools.get_lane_host(lane), []).append(lane)
    assert values["scaling"]["lanes"] == by_host
    assert values["scaling"]["stream"] == topology.COMMANDS
    taken = value_of(SETTINGS["worker"], {}, "lanes")
    assert values["settings"]["lanes"] == taken
    assert set(taken.split(",")) == set(by_host)


def test_the_scaler_names_consumers_as_the_topology_does() -> None:
    template = (HELM / "worker/templates/scaledobject.yaml").read_text()
    assert "range $host := .Values.settings.lanes" in template
    assert 'range include "noetl.scalingConsumers" . | fromJsonArray' in template
    spelled = re.search(r'printf "(worker-[^"]+)" \$pool \$lane', template)
    assert spelled
    for lane in worker_pools.LANES:
        assert spelled[1] % ("gpu", lane) == topology.build_worker_consumer("gpu", lane)


def test_a_worker_is_told_its_node_by_the_cluster() -> None:
    fields = read(HELM / "worker/values.yaml")["fields"]
    assert fields["node"] == "spec.nodeName"


def test_a_worker_may_drain_before_it_is_killed() -> None:
    values = read(HELM / "worker/values.yaml")
    assert values["terminationGracePeriodSeconds"] > values["settings"]["drainS"]


def test_every_compose_variable_has_an_example() -> None:
    text = "".join(path.read_text() for path in COMPOSE.glob("*.yaml"))
    wanted = set(re.findall(r"\$\{(NOETL_[A-Z0-9_]+)", text))
    example = (ROOT / ".env.example").read_text()
    parts = {line.partition("=")[0] for line in example.splitlines() if not line.startswith("#")}
    assert wanted == parts - {""}


def test_every_alert_watches_a_declared_metric_and_has_a_runbook() -> None:
    declared = {metric.name for metric in names.METRICS}
    for group in read(ROOT / "deploy/observability/alerts.yaml")["groups"]:
        for rule in group["rules"]:
            asked = {re.sub("_(bucket|count)$", "", name) for name in METRIC.findall(rule["expr"])}
            assert asked <= declared, rule["alert"]
            runbook = ROOT / rule["annotations"]["runbook"]
            assert runbook.stem == snake(rule["alert"]).replace("_", "-")
            assert runbook.exists(), f"{rule['alert']} lacks {runbook}"
            assert "Invariant at risk" in runbook.read_text(), runbook


def test_every_image_has_its_locked_requirements() -> None:
    for name in [*SETTINGS, "worker-spark", "cli", "dev", "uv", "build", *STORES]:
        text = (ROOT / f"requirements/{name}.txt").read_text()
        pins = re.findall(r"^([a-z0-9._-]+(?:\[[a-z,]+\])?)==", text, re.MULTILINE)
        assert pins, name
        assert text.count("--hash=sha256:") >= len(pins), name
        assert "://" not in text, f"{name}.txt names a download address"


def test_images_hold_the_versions_that_are_tested() -> None:
    pin = re.compile(r"^([a-z0-9._-]+)(?:\[[a-z,]+\])?==([^ ]+)", re.MULTILINE)
    tested = dict(pin.findall((ROOT / "requirements/dev.txt").read_text()))
    for name in [*SETTINGS, "worker-spark", "cli", "build", *STORES]:
        for package, version in pin.findall((ROOT / f"requirements/{name}.txt").read_text()):
            assert tested.get(package) == version, f"{name}: {package} {version}: run `make lock`"


def test_images_take_the_clients_of_every_store() -> None:
    dockerfile = (ROOT / "deploy/docker/Dockerfile").read_text()
    extras = tomllib.loads((ROOT / "libs/storage/pyproject.toml").read_text())
    for name in STORES:
        assert f"requirements/{name}.txt" in dockerfile
        project = extras["project"]["optional-dependencies"][name.removeprefix("store-")]
        pins = (ROOT / f"requirements/{name}.txt").read_text()
        for need in project:
            package = re.split(r"[>=<\[]", need)[0]
            assert re.search(rf"^{package}==", pins, re.MULTILINE), f"{name}: {package}"


def test_the_install_page_lists_the_keys_of_every_secret() -> None:
    page = (ROOT / "docs/operations/install.md").read_text()
    told = {}
    for name, line in re.findall(r"(?m)^(noetl-[a-z]+) +(.+)$", page):
        must, _, may = line.partition("?")
        told[name] = (set(must.split()), set(may.split()))
    read_by_charts = {}
    for chart in (*SETTINGS, "platform"):
        values = read(HELM / chart / "values.yaml")
        optional = values.get("optionalSecrets", {})
        keys = set(values["secrets"].values()), set(optional.values())
        read_by_charts[values["existingSecret"]] = keys
    assert told == read_by_charts
    # The admin's Job has the projector's.
    admin = read(HELM / "platform/values.yaml")["admin"]["existingSecret"]
    template = (HELM / "platform/templates/admin.yaml").read_text()
    named = set(re.findall(r"\"((?:postgres|payload)-[a-z-]+)\"", template))
    assert named <= set.union(*told[admin])


def test_the_page_of_sizes_says_what_was_measured() -> None:
    page = (ROOT / "docs/explanation/performance.md").read_text()
    proofs = msgspec.json.decode((ROOT / "benchmarks/proofs.json").read_bytes())
    event_bytes = msgspec.json.decode((ROOT / "benchmarks/load.json").read_bytes())["soak"][
        "bytes_per_event"
    ]
    assert f"An event takes {event_bytes:,} bytes" in page
    million, slider = proofs["million"], proofs["slider"]
    assert million["rows"] == 1_000_000
    frame_rows = million["rows"] // million["frames"]
    framed = f"{million['events'] * event_bytes / 1e6:.1f} MB"
    assert re.search(rf"(?m)^frames of {frame_rows:,} +{million['events']:,} +{framed} ", page)
    events = round(slider["events"] / slider["items"]) * 1_000_000
    single = f"{events * event_bytes / 1e9:.1f} GB"
    assert re.search(rf"(?m)^one command each +{events:,} +{single} ", page)


def test_every_lane_that_runs_by_hand_has_its_last_run() -> None:
    page = (ROOT / "docs/operations/lanes.md").read_text()
    makefile = (ROOT / "Makefile").read_text()
    dates = dict(re.findall(r"(?m)^make ([a-z/]+) .* (20\d\d-\d\d-\d\d)(?:  .*)?$", page))
    told = set(dates)
    assert told == set(re.findall(r"(?m)^make ([a-z/]+) {2,}\S", page))
    assert {target for target in told if not re.search(rf"(?m)^{target}\b.*:", makefile)} == set()
    by_hand = {"test/containers", "test/cluster", "test/keycloak", "test/observability"}
    assert told >= {*by_hand, "load", "soak", "storm", "proof", "longrun"}
