"""Parquet files. Nothing can be added to one that has its footer, so an output grows as Arrow streams until its end."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dragoman.bulk.backend import Answer
from dragoman.bulk.encoders import Encode
from dragoman.bulk.errors import BulkError
from dragoman.bulk.rows import Input, Row, readable

if TYPE_CHECKING:
    import pyarrow as pa

BATCH_ROWS = 4096
GROUP_ROWS, GROUP_BYTES = 2**17, 2**26  # of a row group, whichever comes first
COMPRESSION = "zstd"


def check_columns(path: Path, name: str, taken: str | None) -> None:
    """Checks that a file has a column of texts, and none with the name that the answers get, if they get one.

    Raises:
        BulkError: The columns do not fit; or pyarrow is not installed, or can't read the file.
    """
    pa = _pyarrow()
    with _opened(path) as file:
        schema = file.schema_arrow
    if name not in schema.names:
        raise BulkError(f'{path} has no column "{name}", but {", ".join(schema.names) or "none at all"}; see --column')
    if schema.names.count(name) > 1:
        raise BulkError(f'{path} has several columns "{name}"; see --column')
    kind = schema.field(name).type
    plain = kind.value_type if pa.types.is_dictionary(kind) else kind
    if not (pa.types.is_string(plain) or pa.types.is_large_string(plain) or pa.types.is_string_view(plain)):
        raise BulkError(f'{path}: the column "{name}" has values of type {kind}, not text')
    if taken in schema.names:
        raise BulkError(f'{path} has a column "{taken}" already; name another --answer-column for the answers')


def number_of_rows(path: Path) -> int:
    """Returns the number of rows of a file.

    Raises:
        BulkError: It can't be read.
    """
    with _opened(path) as file:
        rows: int = file.metadata.num_rows
    return rows


def parquet_rows(path: Path, name: str, start: int) -> Iterator[Row]:
    """Yields the rows after the first `start`.

    Raises:
        BulkError: The file can't be read.
    """
    pa = _pyarrow()
    with _opened(path) as file:
        number, group = 0, 0
        while group < file.num_row_groups and number + file.metadata.row_group(group).num_rows <= start:
            number += file.metadata.row_group(group).num_rows
            group += 1
        try:
            for batch in file.iter_batches(BATCH_ROWS, row_groups=range(group, file.num_row_groups)):
                for row, source in enumerate(batch.column(name).to_pylist()):
                    number += 1
                    if number > start:
                        yield Row(number, *readable(source), (batch, row))
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise BulkError(f"{path}: can't be read after row {number:,}: {_first_line(error)}") from None


def parquet_encoder(source: Input, answer_column: str) -> Encode:
    """Returns a function that writes rows and their answers as an Arrow stream, to be converted by `convert`."""
    pa = _pyarrow()
    answer_field = pa.field(answer_column, pa.string())
    if source.format.kind == "parquet":
        with _opened(source.path) as file:
            schema = file.schema_arrow.append(answer_field)
    else:
        schema = pa.schema([pa.field(source.name, pa.string()), answer_field])

    def encode(rows: Sequence[Row], answers: Sequence[Answer]) -> bytes:
        texts = pa.array([answer.text for answer in answers], pa.string())
        if source.format.kind == "parquet":
            table = pa.Table.from_batches(_slices(rows), schema.remove(len(schema) - 1))
            table = table.append_column(answer_field, texts)
        else:
            sources = pa.array([None if row.problem else row.source for row in rows], pa.string())
            table = pa.Table.from_arrays([sources, texts], schema=schema)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, schema, options=pa.ipc.IpcWriteOptions(compression=COMPRESSION)) as stream:
            stream.write_table(table)
        written: bytes = sink.getvalue().to_pybytes()
        return written

    return encode


def _slices(rows: Sequence[Row]) -> "list[pa.RecordBatch]":
    """Returns consecutive rows as slices of their record batches."""
    slices = []
    first = 0
    for end in range(1, len(rows) + 1):
        batch, row = rows[first].original
        if end == len(rows) or rows[end].original[0] is not batch:
            slices.append(batch.slice(row, end - first))
            first = end
    return slices


def convert(streams: Path, output: Path) -> None:
    """Converts a file of concatenated Arrow streams to a Parquet file.

    Raises:
        OSError: A file can't be read or written.
    """
    pa = _pyarrow()
    from pyarrow import parquet

    with streams.open("rb") as source:
        size = source.seek(0, 2)
        source.seek(0)
        writer: Any = None
        tables: list[Any] = []
        while source.tell() < size:
            tables.append(pa.ipc.open_stream(source).read_all())
            writer = writer or parquet.ParquetWriter(output, tables[0].schema, compression=COMPRESSION)
            rows, size_in_memory = (sum(getattr(each, name) for each in tables) for name in ("num_rows", "nbytes"))
            if rows >= GROUP_ROWS or size_in_memory >= GROUP_BYTES:
                writer.write_table(pa.concat_tables(tables), GROUP_ROWS)
                tables = []
        if writer is not None:
            if tables:
                writer.write_table(pa.concat_tables(tables), GROUP_ROWS)
            writer.close()


def _opened(path: Path) -> Any:
    pa = _pyarrow()
    from pyarrow import parquet

    try:
        return parquet.ParquetFile(path)
    except FileNotFoundError:
        raise BulkError(f"{path}: there is no such file") from None
    except (pa.ArrowException, OSError) as error:
        raise BulkError(f"{path} can't be read as a Parquet file: {_first_line(error)}") from None


def _pyarrow() -> Any:
    try:
        import pyarrow
        import pyarrow.ipc
    except ModuleNotFoundError:
        raise BulkError(
            "Parquet files need the package pyarrow; `pip install '.[parquet]'` in a clone of Dragoman installs it"
        ) from None
    return pyarrow


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0]
