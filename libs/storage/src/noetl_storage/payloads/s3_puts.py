"""Small objects sent to S3 over libcurl, which signs them: one round trip, little work.

boto3 takes several times as long for one. Whatever is no plain success is left to boto3, which
tries again and knows what each answer means.
"""

import re
from collections import deque
from collections.abc import Callable

import pycurl
from msgspec import Struct

from noetl_storage.curl import new_handle

BYTES_MAX = 1024 * 1024

_CONNECT_MS, _TOTAL_MS = 5_000, 30_000
_HANDLES_KEPT = 32
# What every client of S3 signs alike; anything else each quotes in a way of its own.
_PLAIN_KEY = re.compile(r"[A-Za-z0-9_.~-]+(/[A-Za-z0-9_.~-]+)*")
_DOTS = re.compile(r"(^|/)\.\.?(/|$)")
_MEDIA_TYPE = "binary/octet-stream"
_HTTP_OK, _HTTP_CONFLICT, _HTTP_TAKEN = 200, 409, 412


class SigningKeys(Struct, frozen=True, kw_only=True):
    """What signs a request; a role's keys come with a token, and expire."""

    access_key: str
    secret_key: str
    token: str | None = None


class SmallPuts:
    """Sends objects to one bucket; any thread may ask. `keys` gives what signs at the moment."""

    def __init__(
        self, *, endpoint: str, region: str, bucket: str, keys: Callable[[], SigningKeys | None]
    ) -> None:
        self._place = f"{endpoint.rstrip('/')}/{bucket}/"
        self._signing = f"aws:amz:{region}:s3"
        self._keys = keys
        self._idle: deque[pycurl.Curl] = deque(maxlen=_HANDLES_KEPT)

    def put(self, key: str, data: bytes, *, media_type: str = _MEDIA_TYPE, is_new: bool) -> bool:
        """Write an object; False when somebody else must try.

        With `is_new` raises `FileExistsError` where there is one already.
        """
        if len(data) > BYTES_MAX or not _PLAIN_KEY.fullmatch(key) or _DOTS.search(key):
            return False
        keys = self._keys()
        if keys is None:
            return False
        headers = ["Accept:", "Expect:", f"Content-Type: {media_type}"]
        if is_new:
            headers.append("If-None-Match: *")
        if keys.token is not None:
            headers.append(f"X-Amz-Security-Token: {keys.token}")
        try:
            status = self._status(key, data, headers, keys)
        except pycurl.error:
            return False
        if is_new and status in {_HTTP_TAKEN, _HTTP_CONFLICT}:
            raise FileExistsError(key)
        return status == _HTTP_OK

    def _status(self, key: str, data: bytes, headers: list[str], keys: SigningKeys) -> int:
        try:
            curl = self._idle.pop()
        except IndexError:
            curl = self._handle()
        curl.setopt(pycurl.URL, self._place + key)
        curl.setopt(pycurl.USERNAME, keys.access_key)
        curl.setopt(pycurl.PASSWORD, keys.secret_key)
        curl.setopt(pycurl.HTTPHEADER, headers)
        curl.setopt(pycurl.POSTFIELDS, data)
        curl.perform()
        status: int = curl.getinfo(pycurl.RESPONSE_CODE)
        self._idle.append(curl)
        return status

    def _handle(self) -> pycurl.Curl:
        curl = new_handle()
        curl.setopt(pycurl.CUSTOMREQUEST, "PUT")
        curl.setopt(pycurl.AWS_SIGV4, self._signing)
        curl.setopt(pycurl.CONNECTTIMEOUT_MS, _CONNECT_MS)
        curl.setopt(pycurl.TIMEOUT_MS, _TOTAL_MS)
        # What a refusal says in many words, boto3 will ask for again.
        curl.setopt(pycurl.WRITEFUNCTION, len)
        return curl
