"""Runs `python -m dragoman_training.shrink`."""

from dragoman_training.shrink.command import main

if __name__ == "__main__":
    raise SystemExit(main())
