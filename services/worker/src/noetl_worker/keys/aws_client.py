"""Clients of AWS's services, and of what speaks like them, with the keys of a credential."""

from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError

from noetl_worker.keys.credential_vault import Credential


def open_client(
    service: str, credential: Credential, *, region: str | None = None, endpoint: str | None = None
) -> Any:
    """Make a client whose waits and retries are bounded; its account is the credential's alone.

    `region` and `endpoint` stand in for what the credential does not say. Raises `ToolFailure`.
    """
    access_key, secret_key = credential.text("access_key"), credential.text("secret_key")
    region = credential.text("region") or region
    if not access_key or not secret_key or not region:
        raise credential.unusable("needs access_key, secret_key and region")
    try:
        return boto3.session.Session().client(
            service,
            region_name=region,
            endpoint_url=credential.text("endpoint") or endpoint,
            aws_access_key_id=access_key,
            aws_secret_access_key=secret_key,
            aws_session_token=credential.text("session_token"),
            config=Config(
                connect_timeout=5,
                read_timeout=10,
                retries={"mode": "standard", "total_max_attempts": 3},
                s3={"addressing_style": "path"},
            ),
        )
    except (BotoCoreError, ValueError) as problem:
        raise credential.unusable(f"cannot be used: {problem}") from problem
