"""Whom the charts let pods talk to, read as a cluster reads it."""

import importlib
import re
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from noetl_worker.domain import egress

ROOT = Path(__file__).parents[2]
HELM = ROOT / "deploy/helm"
SERVICES = sorted(path.name for path in (ROOT / "services").iterdir() if path.is_dir())
# The setting that holds an address, and the rule that lets its service reach it.
RULES = {
    "nats_url": "nats",
    "nats_monitor_url": "nats",
    "postgres_dsn": "postgres",
    "retention_dsn": "postgres",
    "payload_url": "payloads",
    "otlp_endpoint": "telemetry",
    "openlineage_url": "lineage",
    "oidc_issuer": "identity",
}
# Told to others, who call it.
NOT_CALLED = {"callback_url", "public_url"}
# Where clouds tell whoever asks who he is, and with which keys.
METADATA = (
    *("169.254.169.254", "169.254.170.2", "169.254.170.23", "169.254.0.1", "169.254.255.255"),
    *("168.63.129.16", "100.100.100.200", "fe80::a9fe:a9fe", "fd00:ec2::254", "fd00:ec2::23"),
    *("fd20:ce::254", "64:ff9b::a9fe:a9fe"),
)
PRIVATE = (
    *("10.0.0.1", "10.96.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1", "100.64.0.1"),
    *("127.0.0.1", "0.0.0.0", "224.0.0.1", "255.255.255.255", "192.0.0.8", "192.88.99.1"),  # noqa: S104 - an address to be refused
    *("::1", "::", "fc00::1", "fd12:3456::1", "fec0::1", "ff02::1", "2002:a00:1::", "::a00:1"),
    *("64:ff9b::a00:1", "64:ff9b:1::1", "2001:db8::1", "2001::1"),
)
PUBLIC = ("8.8.8.8", "93.184.216.34", "2606:2800:220:1::1", "2a00:1450:4001::1")

Rule = dict[str, Any]


def policy(service: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((HELM / service / "values.yaml").read_text())
    return found["networkPolicy"]


def blocks(rule: Rule) -> list[dict[str, Any]]:
    return [peer["ipBlock"] for peer in rule["to"] if "ipBlock" in peer]


def reaches(rule: Rule, address: str) -> bool:
    """Tell whether a rule lets a pod connect to an address outside the cluster, at some port."""
    found = ip_address(address)
    return any(
        found in ip_network(block["cidr"])
        and not any(found in ip_network(part) for part in block.get("except", []))
        for block in blocks(rule)
    )


def text(path: str) -> str:
    return (HELM / path).read_text()


@pytest.mark.parametrize("service", SERVICES)
def test_every_service_has_a_policy_unless_somebody_turns_it_off(service: str) -> None:
    assert policy(service)["enabled"] is True
    wired = (
        "{{- if .Values.networkPolicy.enabled }}\n---\n"
        '{{ include "noetl.networkPolicy" . }}\n{{- end }}\n'
    )
    assert wired in text(f"{service}/templates/all.yaml")


def test_a_policy_holds_in_both_directions_and_for_the_services_own_pods() -> None:
    template = text("library/templates/_policies.tpl")
    made = template.partition('define "noetl.networkPolicy"')[2]
    assert "policyTypes: [Ingress, Egress]" in made
    for part in ("noetl.selectors", "noetl.ingressRules", "noetl.egressRules"):
        assert f'include "{part}" .' in made
    for direction in ("ingress", "egress"):
        rules = f'"rules" .{direction} "extra" .extra{direction.capitalize()}'
        assert rules in template


@pytest.mark.parametrize("service", SERVICES)
def test_a_rule_names_peers_and_all_but_that_of_tasks_name_ports(service: str) -> None:
    found = policy(service)
    for name, rule in found["egress"].items():
        assert rule["to"], name
        assert name == "outside" or rule["ports"], name
    for name, rule in found["ingress"].items():
        assert rule["from"], name
        assert rule["ports"], name
    assert found["extraEgress"] == []
    assert found["extraIngress"] == []


def test_a_rule_without_peers_is_no_rule_for_everybody() -> None:
    template = text("library/templates/_policies.tpl")
    assert re.search(r"get \$rule \$\.peers \| required ", template)
    assert '"peers" "from"' in template
    assert '"peers" "to"' in template


@pytest.mark.parametrize("service", SERVICES)
def test_a_service_may_reach_what_its_settings_address_and_nothing_else(service: str) -> None:
    settings = importlib.import_module(f"noetl_{service}.settings").Settings
    addresses = {
        field.name
        for field in msgspec.structs.fields(settings)
        if field.name.endswith(("_url", "_dsn", "_endpoint", "_issuer"))
    } - NOT_CALLED
    wanted = {RULES[name] for name in addresses} | {"dns"}
    if service == "worker":
        # A bucket of a public cloud is one of the addresses outside.
        wanted = wanted - {"payloads"} | {"outside"}
    assert set(policy(service)["egress"]) == wanted


@pytest.mark.parametrize("service", SERVICES)
def test_who_reaches_a_service_names_ports_that_its_pods_have(service: str) -> None:
    ingress = policy(service)["ingress"]
    ports = {port["port"] for rule in ingress.values() for port in rule["ports"]}
    has_http = "httpPort" in yaml.safe_load(text(f"{service}/values.yaml"))
    assert ports == ({"health", "http"} if has_http else {"health"})
    assert ports <= set(
        re.findall(r"\{name: ([a-z]+), containerPort:", text("library/templates/_pod.tpl"))
    )


@pytest.mark.parametrize("service", SERVICES)
@pytest.mark.parametrize("address", METADATA)
def test_nobody_reaches_what_hands_out_a_clouds_credentials(service: str, address: str) -> None:
    rules = policy(service)["egress"]
    assert [name for name, rule in rules.items() if reaches(rule, address)] == []


@pytest.mark.parametrize("address", PRIVATE)
def test_a_worker_reaches_no_private_address(address: str) -> None:
    rules = policy("worker")["egress"]
    assert [name for name, rule in rules.items() if reaches(rule, address)] == []


@pytest.mark.parametrize("address", PUBLIC)
def test_a_worker_reaches_the_outside(address: str) -> None:
    assert reaches(policy("worker")["egress"]["outside"], address)


def test_a_worker_reaches_only_named_places_inside() -> None:
    for name, rule in policy("worker")["egress"].items():
        if name == "outside":
            assert len(blocks(rule)) == len(rule["to"])
            continue
        assert blocks(rule) == [], name
        for peer in rule["to"]:
            assert peer["namespaceSelector"]["matchLabels"]["kubernetes.io/metadata.name"], name


def edges() -> list[str]:
    """List the first and last address of each network that is left out, and their neighbours."""
    found: list[str] = []
    for block in blocks(policy("worker")["egress"]["outside"]):
        for network in map(ip_network, block["except"]):
            kind = type(network.network_address)
            first, last = int(network.network_address), int(network.broadcast_address)
            most = 2**network.max_prefixlen - 1
            near = (item for item in (first - 1, first, last, last + 1) if 0 <= item <= most)
            found += [str(kind(item)) for item in near]
    return found


def test_the_outside_is_what_the_http_tool_takes_for_public() -> None:
    rule = policy("worker")["egress"]["outside"]
    for address in [*edges(), *METADATA, *PRIVATE, *PUBLIC]:
        is_public = egress.is_address_allowed(address, host="example.org", port=443, allowances=())
        if isinstance(ip_address(address), IPv4Address):
            assert reaches(rule, address) is is_public, address
        else:
            # Some of what is public has not been handed out to anybody.
            assert is_public or not reaches(rule, address), address


@pytest.mark.parametrize("service", SERVICES)
def test_what_is_left_out_of_a_block_lies_in_it(service: str) -> None:
    for rule in policy(service)["egress"].values():
        for block in blocks(rule):
            whole = ip_network(block["cidr"])
            kind = IPv4Address if whole.version == 4 else IPv6Address
            for part in map(ip_network, block["except"]):
                assert isinstance(part.network_address, kind), part
                assert part.subnet_of(whole), part
                assert part != whole, part


def test_executors_reach_no_more_than_workers() -> None:
    template = text("worker/templates/spark.yaml")
    driver, executor = re.split(r"\n---\n", template)[-2:]
    assert "spark-role: executor" in executor.partition("policyTypes:")[0]
    for item in (driver, executor):
        assert "policyTypes: [Ingress, Egress]" in item
        assert "ipBlock" not in item
    assert 'include "noetl.egressRules" .' in executor
    assert ".Values.networkPolicy.apiServer | default nil | required" in driver
    assert policy("worker")["apiServer"] == []


def test_the_page_says_who_has_which_rule() -> None:
    page = (ROOT / "docs/operations/network.md").read_text()
    said = dict(re.findall(r"^\| `([a-z]+)` \| ([a-z, ]+) \|", page, re.MULTILINE))
    having: dict[str, list[str]] = {}
    for service in SERVICES:
        for name in policy(service)["egress"]:
            having.setdefault(name, []).append(service)
    assert {name: sorted(who.split(", ")) for name, who in said.items()} == {
        name: ["all"] if who == SERVICES else who for name, who in having.items()
    }
