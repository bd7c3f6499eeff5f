"""Stored Parquet as a data set that is scanned a little at a time: loaded where it is needed.

`pyarrow.dataset` loads pandas with it, so only workers that come here pay for that.
"""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.dataset as datasets


class FrugalDataset(datasets.UnionDataset):  # type: ignore[misc]  # the library has no types
    """Files as one table; a scan holds a batch or two in memory and reads no further ahead."""

    def scanner(self, **options: Any) -> Any:
        """Scan without reading ahead, and a column's pages as they are wanted."""
        frugal = datasets.ParquetFragmentScanOptions(use_buffered_stream=True, pre_buffer=False)
        read_settings = {
            "batch_readahead": 1,
            "fragment_readahead": 1,
            "fragment_scan_options": frugal,
        }
        return super().scanner(**options, **read_settings)


def of_file(file: Any) -> FrugalDataset:
    """Open one file, given as something that pyarrow reads; raises `pa.ArrowException`."""
    format_ = datasets.ParquetFileFormat()
    fragment = format_.make_fragment(file)
    schema: pa.Schema = fragment.physical_schema
    file_system_dataset = datasets.FileSystemDataset(
        [fragment], schema, format_, fragment.filesystem
    )
    return FrugalDataset(schema, [file_system_dataset])


def of_parts(parts: Sequence[FrugalDataset]) -> FrugalDataset:
    """Lay files of one schema below each other."""
    return FrugalDataset(parts[0].schema, [child for part in parts for child in part.children])
