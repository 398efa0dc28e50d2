"""Building blocks of the dashboards' PromQL queries.

$job, $instance and $model are variables of the dashboards; $__rate_interval is Grafana's: four scrapes or more.
"""

SERVER = 'job=~"$job", instance=~"$instance"'
MODEL = f'{SERVER}, model=~"$model"'

# The methods that compute. Health checks and the like would dilute every ratio.
WORK = 'method=~".+/(Generate|GenerateStream|GenerateBatch|GenerateMany|Score|ModelInfer|ModelStreamInfer)"'
# Codes that are not the caller's fault. RESOURCE_EXHAUSTED is, if a key exceeds its limit: those are subtracted.
FAULTS = 'code=~"UNKNOWN|INTERNAL|UNAVAILABLE|DEADLINE_EXCEEDED"'
EXHAUSTED = 'code="RESOURCE_EXHAUSTED"'


def rate(metric: str, by: str = "", where: str = MODEL) -> str:
    """Returns the rate of a counter, summed over all labels except `by`."""
    return _sum(f"rate({metric}{{{where}}}[$__rate_interval])", by)


def total(metric: str, by: str = "", where: str = MODEL) -> str:
    """Returns a gauge, summed over all labels except `by`."""
    return _sum(f"{metric}{{{where}}}", by)


def quantile(share: float, histogram: str, by: str = "", where: str = MODEL) -> str:
    """Returns a quantile of a histogram over the rate interval."""
    labels = f"le, {by}" if by else "le"
    return f"histogram_quantile({share}, {rate(f'{histogram}_bucket', labels, where)})"


def mean(histogram: str, by: str = "", where: str = MODEL) -> str:
    return f"{rate(f'{histogram}_sum', by, where)} / {rate(f'{histogram}_count', by, where)}"


def error_ratio(by: str = "") -> str:
    """Returns the share of calls that failed through no fault of the caller."""
    calls = rate("dragoman_requests_total", by, f"{SERVER}, {WORK}")

    def of(codes: str) -> str:
        return f"({rate('dragoman_requests_total', by, f'{SERVER}, {WORK}, {codes}')} or 0 * {calls})"

    over_limit = rate("dragoman_rejections_total", by, f'{SERVER}, reason="key_limit"')
    return f"({of(FAULTS)} + clamp_min({of(EXHAUSTED)} - {over_limit}, 0)) / {calls}"


def busy(by: str = "", where: str = MODEL) -> str:
    """Returns the share of time in which engines encode, step or copy rows, 0 to 1; they do one at a time."""
    parts = "dragoman_encode_seconds_sum", "dragoman_step_seconds_sum", "dragoman_branch_seconds_total"
    labels = f" by ({by})" if by else ""
    engines = f"count{labels} (dragoman_rows{{{where}}})"
    return f"({' + '.join(rate(part, by, where) for part in parts)}) / {engines}"


def cores(by: str) -> str:
    """Returns the CPU time per second of servers and their workers."""
    own = rate("process_cpu_seconds_total", by, SERVER)
    return f"{own} + ({rate('dragoman_worker_cpu_seconds_total', by, SERVER)} or 0 * {own})"


def _sum(expression: str, by: str) -> str:
    return f"sum by ({by}) ({expression})" if by else f"sum({expression})"
