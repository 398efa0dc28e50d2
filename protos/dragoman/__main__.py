"""`python -m dragoman`: the command `dragoman`, where it is not on the path."""

from dragoman.cli import main

if __name__ == "__main__":
    main()
