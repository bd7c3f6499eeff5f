"""Wrong settings stop the projector with one sentence."""

import pytest

from noetl_chassis.settings import SettingsError
from noetl_projector import settings

NEEDED = {
    "NOETL_PROJECTOR_NATS_URL": "nats://127.0.0.1:4222",
    "NOETL_PROJECTOR_POSTGRES_DSN": "postgresql://127.0.0.1/noetl",
}


def test_the_defaults_make_one_projector_for_all_shards() -> None:
    policy = settings.policy(settings.load(NEEDED))
    assert (policy.index, policy.count, policy.execution_shard_count) == (0, 1, 16)


def test_an_index_outside_the_count_is_refused() -> None:
    wrong = {
        **NEEDED,
        "NOETL_PROJECTOR_SHARD_INDEX": "2",
        "NOETL_PROJECTOR_SHARD_COUNT": "2",
    }
    with pytest.raises(SettingsError, match="numbered from 0 to 1"):
        settings.load(wrong)


def test_more_projectors_than_shards_are_refused() -> None:
    with pytest.raises(SettingsError, match="run no more projectors"):
        settings.load({**NEEDED, "NOETL_PROJECTOR_SHARD_COUNT": "17"})
