"""The worker's own secrets are masked like those of playbooks, and are not forgotten for them."""

from pathlib import Path

from tests.support.working import settings_of

from noetl_worker.domain.secret_mask import SecretMask
from noetl_worker.settings import list_own_secrets

KEY = "a2V5LWtleS1rZXkta2V5LWtleS1rZXkta2V5LWtleTA="


def test_keys_and_passwords_of_settings_are_own_secrets(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("old:c2VhbC1zZWFsLXNlYWwtc2VhbC1zZWFsLXNlYWwtc2U= # the first\n")
    config = settings_of(
        nats_url="nats://worker:pass%2Fword-1@127.0.0.1:4222,nats://token-of-nats@127.0.0.1:4223",
        payload_secret_key="store-secret-1",  # noqa: S106 - of this test alone
        payload_access_key="worker-of-the-store",
        spark_secret="noetl-worker",  # noqa: S106 - the name of one
        payload_seal_file=str(file),
        payload_seal_key="",
        secret_key=KEY,
        callback_url="http://caller:call-secret@127.0.0.1:8080",
        secret_env={"API_PASSWORD": "handed-over"},
    )
    secret_mask = SecretMask(own=list_own_secrets(config))
    for shown in (
        "pass%2Fword-1",
        "pass/word-1",
        "token-of-nats",
        "store-secret-1",
        "c2VhbC1zZWFsLXNlYWwtc2VhbC1zZWFsLXNlYWwtc2U=",
        KEY,
        "call-secret",
        "handed-over",
    ):
        assert secret_mask.mask_text(f"say {shown}.") == "say ***.", shown
    plain = "noetl-worker-0 of 127.0.0.1 is worker-of-the-store"
    assert secret_mask.mask_text(plain) == plain


def test_a_secret_of_several_keys_is_masked_key_by_key() -> None:
    secret_mask = SecretMask(
        own=list_own_secrets(settings_of(payload_seal_key=f"new:{KEY},old:{KEY}x"))
    )
    assert secret_mask.mask_text(f"it is {KEY}x") == "it is ***"


def test_own_secrets_stay_when_many_others_are_learned() -> None:
    secret_mask = SecretMask(own=["own-secret"])
    secret_mask.learn_secrets([f"secret-{number:06}" for number in range(3000)])
    assert secret_mask.mask_text("own-secret secret-002999") == "*** ***"
