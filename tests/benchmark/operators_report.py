"""The part of the report that tells where the time of the graphs goes."""

from collections.abc import Sequence

from tests.benchmark.operators import OperatorTimes, is_product
from tests.benchmark.tables import table

SMALLEST = 0.01  # share of an operator type that gets a line of its own


def operator_sections(times: Sequence[OperatorTimes]) -> list[str]:
    """A table for each graph."""
    intro = (
        "One thread, rows in the middle of their targets, without what the server does around a step. Shares are of "
        "the time that ONNX Runtime recorded for the operators of a run."
    )
    graphs = dict.fromkeys(each.graph for each in times)
    tables = [_table([each for each in times if each.graph == graph], graph) for graph in graphs]
    return ["### Time by operator", intro, *tables]


def _table(times: Sequence[OperatorTimes], graph: str) -> str:
    names = dict.fromkeys(name for each in times for name in each.shares)
    largest = {name: max(each.shares.get(name, 0.0) for each in times) for name in names}
    own = sorted((name for name in names if largest[name] >= SMALLEST), key=lambda name: -largest[name])
    rest = [sum(share for name, share in each.shares.items() if name not in own) for each in times]
    rows = [[name + (" (product)" if is_product(name) else ""), *_percent(_shares(times, name))] for name in own]
    rows.append(["all others", *_percent(rest)])
    rows.append(["**not matrix products**", *_percent([each.other_than_products for each in times])])
    rows.append(["nodes", *(str(each.nodes) for each in times)])
    rows.append(["ms a run", *(f"{1e3 * each.seconds:.3f}" for each in times)])
    return table([graph, *(f"{each.rows} rows" if each.rows > 1 else "1 row" for each in times)], rows)


def _shares(times: Sequence[OperatorTimes], name: str) -> list[float]:
    return [each.shares.get(name, 0.0) for each in times]


def _percent(shares: Sequence[float]) -> list[str]:
    return [f"{100 * share:.1f} %" for share in shares]
