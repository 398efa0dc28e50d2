"""Dashboards and recording rules as code: `python -m deploy.monitoring.build` writes them."""
