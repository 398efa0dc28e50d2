"""`python -m dragoman_training` is `dragoman-train`, for launchers such as `torchrun -m`."""

from dragoman_training.cli import main

if __name__ == "__main__":
    main()
