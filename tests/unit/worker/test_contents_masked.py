"""What an artifact holds is masked in every format, before it is packed."""

import pytest

from noetl_storage.arrow import encoding
from noetl_worker.domain.secret_mask import SecretMask
from noetl_worker.tools.tables import contents

SECRET = "blaumeise-4711-geheim"  # noqa: S105 - a value for the test
ROWS = [{"n": 1, "s": SECRET}, {"n": 2, "s": "open"}]


def written(format_: str, compression: str | None = None, value: object = ROWS) -> bytes:
    mask = SecretMask()
    mask.learn_secrets(SECRET)
    return contents.encode_content(
        value, format_=format_, compression=compression, mask=mask.mask_bytes
    ).data


@pytest.mark.parametrize("format_", ["parquet", "arrow"])
def test_tables_are_masked_row_by_row_and_stay_tables(format_: str) -> None:
    table = encoding.read_table(written(format_))
    assert table.to_pylist() == [{"n": 1, "s": "***"}, {"n": 2, "s": "open"}]


@pytest.mark.parametrize("format_", ["json", "ndjson", "csv", "text"])
@pytest.mark.parametrize("compression", ["gzip", "zstd"])
def test_texts_are_masked_before_they_are_packed(format_: str, compression: str) -> None:
    text = encoding.expand_bytes(written(format_, compression), compression)  # type: ignore[arg-type]  # both names are compressions
    assert b"***" in text
    assert SECRET.encode() not in text


def test_bytes_are_masked_too() -> None:
    assert written("bytes", value="YmxhdW1laXNlLTQ3MTEtZ2VoZWltIQ==") == b"***!"
