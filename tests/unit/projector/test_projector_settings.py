"""Wrong settings stop the projector with one sentence."""

import pytest

from noetl_chassis.settings import SettingsError
from noetl_projector import settings

NEEDED = {
    "NOETL_PROJECTOR_NATS_URL": "nats://127.0.0.1:4222",
    "NOETL_PROJECTOR_POSTGRES_DSN": "postgresql://127.0.0.1/noetl",
}


def test_the_defaults_make_one_projector_for_all_shards() -> None:
    policy = settings.build_policy(settings.load_settings(NEEDED))
    assert (policy.index, policy.count, policy.execution_shard_count) == (0, 1, 16)


def test_an_index_outside_the_count_is_refused() -> None:
    wrong = {
        **NEEDED,
        "NOETL_PROJECTOR_SHARD_INDEX": "2",
        "NOETL_PROJECTOR_SHARD_COUNT": "2",
    }
    with pytest.raises(SettingsError, match="numbered from 0 to 1"):
        settings.load_settings(wrong)


def test_more_projectors_than_shards_are_refused() -> None:
    with pytest.raises(SettingsError, match="run no more projectors"):
        settings.load_settings({**NEEDED, "NOETL_PROJECTOR_SHARD_COUNT": "17"})


PODS = {**NEEDED, "NOETL_PROJECTOR_SHARD_COUNT": "4"}


def test_a_pods_ordinal_is_its_index() -> None:
    found = settings.load_settings({**PODS, "NOETL_PROJECTOR_POD_NAME": "noetl-projector-3"})
    assert settings.build_policy(found).index == 3
    same = {"NOETL_PROJECTOR_POD_NAME": "noetl-projector-2", "NOETL_PROJECTOR_SHARD_INDEX": "2"}
    assert settings.load_settings({**PODS, **same}).shard_index == 2


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"POD_NAME": "noetl-projector-abc"}, "ends in no ordinal"),
        ({"POD_NAME": "projector"}, "ends in no ordinal"),
        ({"POD_NAME": "noetl-projector-4"}, "numbered from 0 to 3"),
        ({"POD_NAME": "noetl-projector-1", "SHARD_INDEX": "2"}, "set one of them"),
        ({"SHARD_COUNT": "0"}, "SHARD_COUNT"),
        ({"SHARD_INDEX": "-1"}, "SHARD_INDEX"),
    ],
)
def test_bad_wiring_is_refused(fields: dict[str, str], sentence: str) -> None:
    environ = {f"NOETL_PROJECTOR_{name}": value for name, value in fields.items()}
    with pytest.raises(SettingsError, match=sentence):
        settings.load_settings({**PODS, **environ})


def test_lineage_is_told_where_a_receiver_is_named() -> None:
    assert not settings.build_lineage_policy(settings.load_settings(NEEDED)).is_kept
    address = {"NOETL_PROJECTOR_OPENLINEAGE_URL": "http://marquez:5000"}
    assert settings.build_lineage_policy(settings.load_settings({**NEEDED, **address})).is_kept
    with pytest.raises(SettingsError, match="OPENLINEAGE_URL"):
        settings.load_settings({**NEEDED, "NOETL_PROJECTOR_OPENLINEAGE_URL": "marquez:5000"})
