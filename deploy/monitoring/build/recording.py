"""The recording rules: burn rates of two objectives over seven windows, and the values that alerts compare.

An objective's error budget is the share of calls that may fail, or first tokens that may be late, in 30 days. Its burn
rate is the actual share divided by the budget: at 1 the budget lasts exactly 30 days (The Site Reliability
Workbook, "Alerting on SLOs").
"""

from textwrap import indent

from deploy.monitoring.build.promql import EXHAUSTED, FAULTS, WORK

CALL_ERROR_BUDGET = 0.001
SLOW_BUDGET = 0.01
# A bucket bound of dragoman_first_token_seconds, spelled as servers report it.
SLOW_SECONDS = "1.0"

FAST, SLOW = ("5m", "30m", "1h"), ("2h", "6h", "1d", "3d")
JOB, MODEL = "namespace, job", "namespace, job, model"

HEADER = """\
# Written by `make dashboards` from build/recording.py; change it there. The two budgets, the first rules
# below, are yours to set in your copy: all burn rates follow.
groups:
"""


def recording() -> str:
    """Returns the rule file."""
    budgets = [
        _rule("dragoman:call_error_budget:ratio", f"vector({CALL_ERROR_BUDGET})"),
        _rule("dragoman:slow_first_token_budget:ratio", f"vector({SLOW_BUDGET})"),
    ]
    groups = {
        "dragoman-objectives": (None, [*budgets, *(rule for window in FAST for rule in _burn_rates(window))]),
        "dragoman-objectives-slow": ("2m", [rule for window in SLOW for rule in _burn_rates(window)]),
        "dragoman-saturation": (None, _saturation()),
    }
    return HEADER + "\n".join(_group(name, interval, rules) for name, (interval, rules) in groups.items())


def _burn_rates(window: str) -> list[str]:
    calls, tokens = f"job:dragoman_calls:rate{window}", f"job_model:dragoman_first_tokens:rate{window}"

    def of(codes: str) -> str:
        rate = f"sum by ({JOB}) (rate(dragoman_requests_total{{{WORK}, {codes}}}[{window}]))"
        return f"(\n  {rate}\n  or 0 * {calls}\n)"

    over_limit = f'sum by ({JOB}) (rate(dragoman_rejections_total{{reason="key_limit"}}[{window}]))'
    errors = f"{of(FAULTS)}\n+ clamp_min(\n{indent(of(EXHAUSTED), '  ')}\n  - {over_limit},\n  0\n)"
    in_time = f'rate(dragoman_first_token_seconds_bucket{{le="{SLOW_SECONDS}"}}[{window}])'
    return [
        _rule(calls, f"sum by ({JOB}) (rate(dragoman_requests_total{{{WORK}}}[{window}]))"),
        _rule(
            f"job:dragoman_call_errors:burn_rate{window}",
            f"(\n{indent(errors, '  ')}\n) / {calls} / scalar(dragoman:call_error_budget:ratio)",
        ),
        _rule(tokens, f"sum by ({MODEL}) (rate(dragoman_first_token_seconds_count[{window}]))"),
        _rule(
            f"job_model:dragoman_slow_first_tokens:burn_rate{window}",
            f"(\n  1 - sum by ({MODEL}) ({in_time})\n  / {tokens}\n) / scalar(dragoman:slow_first_token_budget:ratio)",
        ),
    ]


def _saturation() -> list[str]:
    def rate(metric: str) -> str:
        return f"sum by ({MODEL}) (rate({metric}[5m]))"

    # The engines' busy time excludes dragoman_score_seconds: the scorer computes in parallel, with a thread and a
    # session of its own. Otherwise the ratio could exceed 1, and a busy scorer would look like busy engines.
    return [
        _rule(
            "job_model:dragoman_queue_seconds:p95_5m",
            f"histogram_quantile(0.95, sum by ({MODEL}, le) (rate(dragoman_queue_seconds_bucket[5m])))",
        ),
        _rule(
            "job_model:dragoman_engines_busy:ratio_rate5m",
            f"(\n  {rate('dragoman_encode_seconds_sum')}\n  + {rate('dragoman_step_seconds_sum')}\n"
            f"  + {rate('dragoman_branch_seconds_total')}\n) / count by ({MODEL}) (dragoman_rows)",
        ),
        # Each server has one scorer per version: the busiest counts, which idle ones of other servers must not hide.
        _rule(
            "job_model:dragoman_scorer_busy:max_rate5m",
            f"max by ({MODEL}) (\n  sum by ({MODEL}, instance, version) (rate(dragoman_score_seconds_sum[5m]))\n)",
        ),
        _rule(
            "job_model:dragoman_rows_used:ratio_avg5m",
            f"sum by ({MODEL}) (avg_over_time(dragoman_rows_running[5m]))\n/ sum by ({MODEL}) (dragoman_rows)",
        ),
        _rule(
            "job_model:dragoman_requests_waiting:avg5m",
            f"sum by ({MODEL}) (avg_over_time(dragoman_requests_waiting[5m]))",
        ),
    ]


def _rule(name: str, expr: str) -> str:
    return f"- record: {name}\n  expr: |\n{indent(expr, '    ')}\n"


def _group(name: str, interval: str | None, rules: list[str]) -> str:
    every = f"    interval: {interval}\n" if interval else ""
    return f"  - name: {name}\n{every}    rules:\n" + indent("".join(rules), "      ")
