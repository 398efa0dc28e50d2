"""Ray Data: the class that `map_batches` runs in actors, each with a model of its own or a client of servers.

    import ray
    from dragoman.ray import Predictor

    words = ray.data.read_parquet("words/")
    answered = words.map_batches(
        Predictor,
        fn_constructor_kwargs={"bundle": "bundles/g2p-en", "column": "word", "beam_size": 4},
        batch_size=4096,
        batch_format="pyarrow",
        num_cpus=2,
        compute=ray.data.ActorPoolStrategy(size=4),
    )
    answered.write_parquet("answers/")

Requires the extra `ray`, and for a bundle `server` or `server-gpu`.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack

from dragoman.bulk.backend import Answer, Backend
from dragoman.bulk.rows import DEFAULT_COLUMN, readable
from dragoman.requests import GenerateOptions


class Predictor:
    """Answers the texts of a column. Ray makes one in each actor, and hands it batch after batch.

    A bundle gets the CPUs and the GPU that Ray has assigned to the actor (`num_cpus`, `num_gpus`): with `num_gpus=1`
    the model runs on that GPU, or the actor fails; without, on as many threads as it has CPUs. A batch is sorted by
    length and answered at once, so give it a few thousand rows. Arrow batches (`batch_format="pyarrow"`) get columns of
    texts even where all of them are null; from others, Ray writes Parquet files that differ in their types.

    Args:
        bundle: Directory of a bundle, which each node must see, to run in the actor.
        address: Address of servers, as for Client, instead of a bundle.
        column: Column of the sources.
        answer_column: Column to add, with the answers; null where there is none.
        problem_column: Column to add: what is wrong with a source or its answer, null if nothing is.
        machine: For a bundle: options of `dragoman-serve` by name, such as {"max_rows": 64}.
        client: For servers: arguments of Client, such as {"timeout": 300, "api_key": "..."}.
        options: GenerateOptions.

    Raises:
        BulkError: The bundle, the device or an option can't be used.
        DragomanError: No server answers.
        ValueError: There is neither bundle nor address, or there are both; or two columns have the same name.
    """

    def __init__(
        self,
        bundle: str | Path | None = None,
        *,
        address: str | Sequence[str] | None = None,
        column: str = DEFAULT_COLUMN,
        answer_column: str = "answer",
        problem_column: str = "problem",
        machine: Mapping[str, Any] | None = None,
        client: Mapping[str, Any] | None = None,
        **options: Unpack[GenerateOptions],
    ) -> None:
        if (bundle is None) == (address is None):
            raise ValueError("expected either a bundle or an address")
        if len({column, answer_column, problem_column}) < 3:
            raise ValueError("expected three different names as column, answer_column and problem_column")
        self._column, self._answers, self._problems = column, answer_column, problem_column
        self._backend: Backend
        if bundle is not None:
            from dragoman.bulk.in_process import open_bundle

            cores, device = _assigned()
            self._backend = open_bundle(Path(bundle), options, {"device": device, **(machine or {})}, cores)
        else:
            from dragoman.bulk.servers import Servers
            from dragoman.client import Client

            assert address is not None
            self._backend = Servers(Client(address, **(client or {})), options)

    def __call__(self, batch: Any) -> Any:
        """Returns a batch with the columns of answers and problems.

        Args:
            batch: Columns as NumPy arrays by name, an Arrow table, or a pandas DataFrame: all that Ray Data hands over.

        Raises:
            KeyError: The batch has no column of the sources.
            ValueError: It has a column of the name that answers or problems get.
        """
        names = list(batch.column_names if hasattr(batch, "column_names") else batch)
        if self._column not in names:
            raise KeyError(f"there is no column {self._column!r}, only {', '.join(map(str, names))}")
        for name in (self._answers, self._problems):
            if name in names:
                raise ValueError(f"there is a column {name!r} already; choose another answer_column or problem_column")
        rows = [_source(value) for value in _values(batch[self._column])]
        sources = [source for source, problem in rows if not problem]
        [found] = self._backend.answers([sources])
        unread = iter(found)
        answers = [Answer(None, problem) if problem else next(unread) for _, problem in rows]
        return _with_columns(
            batch,
            {
                self._answers: [answer.text for answer in answers],
                self._problems: [answer.complaint or None for answer in answers],
            },
        )

    def close(self) -> None:
        """Ends the engines or the connections. In Ray, the end of the actor does."""
        self._backend.close()


def _values(column: Any) -> list[Any]:
    if hasattr(column, "to_pylist"):
        values: list[Any] = column.to_pylist()
    elif hasattr(column, "notna"):  # pandas has several values for none
        values = column.astype(object).where(column.notna(), None).tolist()
    else:
        values = column.tolist()
    return values


def _source(value: Any) -> tuple[str, str]:
    if isinstance(value, float) and value != value:  # NaN, which pandas leaves in NumPy arrays for none
        value = None
    if value is None or isinstance(value, str):
        return readable(value)
    return "", f"is of type {type(value).__name__}, not text"


def _with_columns(batch: Any, columns: dict[str, list[str | None]]) -> Any:
    """Returns a batch with more columns of texts: lists beside NumPy arrays, which Ray takes as well."""
    if hasattr(batch, "append_column"):
        import pyarrow as pa

        for name, values in columns.items():
            batch = batch.append_column(name, pa.array(values, pa.string()))
        return batch
    if hasattr(batch, "assign"):
        return batch.assign(**columns)
    return {**batch, **columns}


def _assigned() -> tuple[int | None, str]:
    """Returns the CPU cores and the device that Ray has assigned to this actor; all of the machine outside of one."""
    import ray

    if not ray.is_initialized() or ray.get_runtime_context().worker.mode != ray.WORKER_MODE:  # a trial on its own
        return None, "auto"
    assigned = ray.get_runtime_context().get_assigned_resources()
    return max(1, int(assigned.get("CPU", 1))), "cuda" if assigned.get("GPU") else "cpu"
