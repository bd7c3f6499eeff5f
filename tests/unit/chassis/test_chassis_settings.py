import msgspec
import pytest
from msgspec import Struct

from noetl_chassis import settings
from noetl_chassis.settings import ServiceSettings, SettingsError


class Knobs(ServiceSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    postgres_dsn: str
    secret_key: str = ""
    hosts: tuple[str, ...] = ()
    lease_s: float = 30.0
    template_env: dict[str, str] = msgspec.field(default_factory=dict)


GOOD = {"NOETL_X_NATS_URL": "nats://u:pw@h:4222", "NOETL_X_POSTGRES_DSN": "postgres://u:pw@h/d"}


def load(**more: str) -> Knobs:
    named = {f"NOETL_X_{name.upper()}": value for name, value in more.items()}
    return settings.load_settings(Knobs, prefix="NOETL_X_", environ={**GOOD, **named, "OTHER": "1"})


def test_variables_become_typed_fields() -> None:
    knobs = load(lease_s="2.5", hosts="a, b,,c", health_port="81")
    assert (knobs.lease_s, knobs.hosts, knobs.health_port) == (2.5, ("a", "b", "c"), 81)


def test_an_empty_variable_counts_as_absent() -> None:
    assert load(lease_s="").lease_s == 30.0


def test_a_misspelt_variable_is_refused_with_the_likely_one() -> None:
    with pytest.raises(SettingsError, match=r"NOETL_X_LEASES is not.*did you mean NOETL_X_LEASE_S"):
        load(leases="3")


def test_a_missing_variable_is_named() -> None:
    with pytest.raises(SettingsError, match="NOETL_X_NATS_URL must be set"):
        settings.load_settings(Knobs, prefix="NOETL_X_", environ={})


def test_all_that_is_wrong_is_said_at_once_a_line_each() -> None:
    named = {"NOETL_X_LEASES": "3", "NOETL_X_LEASE_S": "hunter2", "NOETL_X_HEALTH_PORT": "70000"}
    with pytest.raises(SettingsError) as refused:
        settings.load_settings(Knobs, prefix="NOETL_X_", environ=named)
    lines = str(refused.value).splitlines()
    assert [line.split()[0].rstrip(":") for line in lines] == [
        *("NOETL_X_LEASES", "NOETL_X_NATS_URL", "NOETL_X_HEALTH_PORT"),
        *("NOETL_X_POSTGRES_DSN", "NOETL_X_LEASE_S"),
    ]
    assert "hunter2" not in str(refused.value)


LINKS = {
    "service_host": "10.96.0.7",
    "service_port": "8080",
    "service_port_http": "8080",
    "port": "tcp://10.96.0.7:8080",
    "port_8080_tcp": "tcp://10.96.0.7:8080",
    "port_8080_tcp_addr": "10.96.0.7",
    "port_8080_tcp_port": "8080",
    "port_8080_tcp_proto": "tcp",
}


def test_what_a_cluster_says_of_a_service_of_the_same_name_is_no_setting() -> None:
    assert load(**LINKS) == load()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("service_host", "example.org/x"),
        ("service_port", "http"),
        ("port", "8080"),
        ("port_8080_tcp_addr", "example.org/x"),
        ("port_8080_tcp_port", "http"),
        ("port_8080_tcp_proto", "8080"),
    ],
)
def test_what_only_resembles_it_is_refused(name: str, value: str) -> None:
    with pytest.raises(SettingsError, match=f"NOETL_X_{name.upper()} is not a setting"):
        load(**{name: value})


def test_an_ill_typed_variable_is_named_without_its_value() -> None:
    with pytest.raises(SettingsError, match="NOETL_X_LEASE_S: Expected `float`") as refused:
        load(lease_s="hunter2")
    assert "hunter2" not in str(refused.value)


def test_secrets_are_never_printed() -> None:
    hidden = {"secret_key": "hunter2"}
    lines = settings.render_settings(load(**hidden), prefix="NOETL_X_")
    printed = "\n".join(lines)
    assert "hunter2" not in printed
    assert "pw" not in printed
    assert "NOETL_X_SECRET_KEY=***" in printed
    assert "NOETL_X_NATS_URL=nats://***@h:4222" in printed


@pytest.mark.parametrize(
    "text",
    ["host=h password=hunter2 dbname=d", "postgres://u:hunter2@h/d", "x password='hunter2' y"],
)
def test_passwords_in_addresses_are_masked(text: str) -> None:
    assert "hunter2" not in settings.mask_addresses(text)


def test_plain_structs_can_be_settings_too() -> None:
    class Plain(Struct, frozen=True, kw_only=True):
        count: int = 1

    assert settings.load_settings(Plain, prefix="P_", environ={"P_COUNT": "4"}).count == 4


@pytest.mark.parametrize("name", ["NOETL_TEMPLATE_ENV", "NOETL_X_TEMPLATE_ENV"])
def test_a_mapping_names_variables_and_receives_those_that_are_set(name: str) -> None:
    environ = {**GOOD, name: "REGION, GONE", "REGION": "eu", "OTHER": "1"}
    knobs = settings.load_settings(Knobs, prefix="NOETL_X_", environ=environ)
    assert knobs.template_env == {"REGION": "eu"}
    (line,) = [
        setting
        for setting in settings.render_settings(knobs, prefix="NOETL_X_")
        if "TEMPLATE" in setting
    ]
    assert line == "NOETL_X_TEMPLATE_ENV=REGION  (default empty)"
