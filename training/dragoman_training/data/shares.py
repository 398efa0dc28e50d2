"""The batches of a step, shared out to the processes that train."""

from collections.abc import Sequence


def share_out(costs: Sequence[int], processes: int) -> list[list[int]]:
    """Shares out batches so that no process has much more to do than another.

    The most expensive batch first, each goes to the process with the least so far (Graham 1969) among those that have
    room: processes run their batches side by side, so that none may have more than its share.

    Args:
        costs: Cost of each batch.
        processes: Number of processes.

    Returns:
        The batches of each process in ascending order, at most len(costs) / processes, rounded up.
    """
    most = -(-len(costs) // processes)
    shares: list[list[int]] = [[] for _ in range(processes)]
    loads = [0] * processes
    for batch in sorted(range(len(costs)), key=lambda i: -costs[i]):
        free = (i for i in range(processes) if len(shares[i]) < most)
        chosen = min(free, key=lambda i: loads[i])
        shares[chosen].append(batch)
        loads[chosen] += costs[batch]
    return [sorted(share) for share in shares]
