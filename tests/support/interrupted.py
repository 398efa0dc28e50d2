"""Commands that do long work on files, as processes that a test kills and stops while they save windows."""

import signal
import subprocess
import time
from pathlib import Path

LETTERS = "etaoinshrdlucmfwypvbgkjqxz"
LONGEST = 120.0  # seconds of one run


def made_up_word(number: int) -> str:
    """Returns a word of 3 to 12 letters."""
    draw, letters = number * 2654435761 % 2**32, ""
    for _ in range(3 + number % 10):
        draw, letter = divmod(draw * 31 + 7, len(LETTERS))
        letters += LETTERS[letter]
    return letters


def start(*command: str | Path) -> subprocess.Popen[str]:
    return subprocess.Popen([*map(str, command)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def end(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Waits for the end; returns exit status, standard output and standard error."""
    output, errors = process.communicate(timeout=LONGEST)
    return process.returncode, output, errors


def wait_for_windows(out: Path, count: int, process: subprocess.Popen[str]) -> None:
    """Waits until this many windows of an output are saved."""
    deadline, journal = time.monotonic() + LONGEST, Path(f"{out}.journal")
    while not journal.exists() or journal.read_bytes().count(b"\n") <= count:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.002)


def interrupt(process: subprocess.Popen[str], out: Path, windows: int, number: int, program: str) -> None:
    """Sends a signal once this many windows are saved, and checks that the work ends as it should, without an output.

    Args:
        program: How the command calls itself in its messages.
    """
    wait_for_windows(out, windows, process)
    process.send_signal(number)
    status, output, errors = end(process)
    assert not out.exists()
    assert output == ""
    if number == signal.SIGKILL:
        assert status == -signal.SIGKILL
    else:
        sentence = f"{program}: stopped; run the same command to continue from what is saved beside {out}"
        assert (status, errors.splitlines()[-1]) == (75, sentence)
