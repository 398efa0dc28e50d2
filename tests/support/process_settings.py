"""What tests and the programs they call change in their process, and with it for the tests that follow."""

import logging
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def restored_settings() -> Iterator[None]:
    """Restores the setup of logs, signal handlers, hooks for unhandled exceptions, and how threads take turns."""
    interval, wakeup = sys.getswitchinterval(), _wakeup_fd()
    signals = _signal_handlers()
    hooks = threading.excepthook, sys.unraisablehook
    root = logging.getLogger()
    level, handlers = root.level, root.handlers.copy()
    structlog = sys.modules.get("structlog")  # importing it takes longer than most tests
    config = structlog.get_config() if structlog and structlog.is_configured() else None
    try:
        yield
    finally:
        sys.setswitchinterval(interval)
        signal.set_wakeup_fd(wakeup)
        for number, handler in _signal_handlers().items():
            if handler is not signals[number]:
                signal.signal(number, signals[number])
        threading.excepthook, sys.unraisablehook = hooks
        root.setLevel(level)
        root.handlers[:] = handlers
        if config is not None:
            sys.modules["structlog"].configure(**config)
        elif "structlog" in sys.modules:
            sys.modules["structlog"].reset_defaults()


def _signal_handlers() -> dict[int, Any]:
    return {number: signal.getsignal(number) for number in signal.valid_signals()}


def _wakeup_fd() -> int:
    descriptor = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(descriptor)
    return descriptor
