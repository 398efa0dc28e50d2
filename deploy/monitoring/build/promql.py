"""PromQL that the dashboards' queries are put together from.

$job, $instance and $model are variables of the dashboards; $__rate_interval is Grafana's: four scrapes or more.
"""

SERVER = 'job=~"$job", instance=~"$instance"'
MODEL = f'{SERVER}, model=~"$model"'

# The methods that compute: health checks and the like would thin out every ratio.
WORK = 'method=~".+/(Generate|GenerateStream|GenerateBatch|Score|ModelInfer|ModelStreamInfer)"'
# What is not the caller's doing. RESOURCE_EXHAUSTED is, where a key is over its own limit: those are counted apart.
FAULTS = 'code=~"UNKNOWN|INTERNAL|UNAVAILABLE|DEADLINE_EXCEEDED"'
EXHAUSTED = 'code="RESOURCE_EXHAUSTED"'


def rate(metric: str, by: str = "", where: str = MODEL) -> str:
    """What a counter gains a second, summed over all but some labels."""
    return _sum(f"rate({metric}{{{where}}}[$__rate_interval])", by)


def total(metric: str, by: str = "", where: str = MODEL) -> str:
    """A gauge, summed over all but some labels."""
    return _sum(f"{metric}{{{where}}}", by)


def quantile(share: float, histogram: str, by: str = "", where: str = MODEL) -> str:
    """Of a histogram, over the last moments."""
    labels = f"le, {by}" if by else "le"
    return f"histogram_quantile({share}, {rate(f'{histogram}_bucket', labels, where)})"


def mean(histogram: str, by: str = "", where: str = MODEL) -> str:
    return f"{rate(f'{histogram}_sum', by, where)} / {rate(f'{histogram}_count', by, where)}"


def error_ratio(by: str = "") -> str:
    """Share of the calls that failed through no fault of the caller."""
    calls = rate("dragoman_requests_total", by, f"{SERVER}, {WORK}")

    def of(codes: str) -> str:
        return f"({rate('dragoman_requests_total', by, f'{SERVER}, {WORK}, {codes}')} or 0 * {calls})"

    over_limit = rate("dragoman_rejections_total", by, f'{SERVER}, reason="key_limit"')
    return f"({of(FAULTS)} + clamp_min({of(EXHAUSTED)} - {over_limit}, 0)) / {calls}"


def busy(by: str = "", where: str = MODEL) -> str:
    """Share of the time in which engines compute, 0 to 1: they encode, step and copy rows one after the other."""
    parts = "dragoman_encode_seconds_sum", "dragoman_step_seconds_sum", "dragoman_branch_seconds_total"
    labels = f" by ({by})" if by else ""
    engines = f"count{labels} (dragoman_rows{{{where}}})"
    return f"({' + '.join(rate(part, by, where) for part in parts)}) / {engines}"


def cores(by: str) -> str:
    """CPU time a second, of servers and of the workers of those that have some."""
    own = rate("process_cpu_seconds_total", by, SERVER)
    return f"{own} + ({rate('dragoman_worker_cpu_seconds_total', by, SERVER)} or 0 * {own})"


def _sum(expression: str, by: str) -> str:
    return f"sum by ({by}) ({expression})" if by else f"sum({expression})"
