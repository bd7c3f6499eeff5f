"""Where the master keys of payloads may be held, by the scheme of their address."""

import importlib
from typing import Any
from urllib.parse import urlsplit

from noetl_storage.ports.errors import StorageMisconfigured

AWS = "kms+aws"


def open_managed_keys(address: str) -> Any:
    """Open a key management service; raises `StorageMisconfigured`. It wraps and unwraps keys."""
    scheme = urlsplit(address).scheme
    if scheme != AWS:
        raise StorageMisconfigured(
            f"keys of payloads cannot be held at {scheme}://: use kms+file:// or {AWS}://"
        )
    try:
        # An extra installs its client.
        aws_keys = importlib.import_module("noetl_storage.payloads.aws_keys")
    except ImportError as failure:
        raise StorageMisconfigured(
            "keys in AWS KMS need its client: pip install 'noetl-storage[s3]'"
        ) from failure
    return aws_keys.open_keys(address)
