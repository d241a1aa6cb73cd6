"""``python -P -m callboard``: the command line where its console script is not on the path."""

from callboard.cli import main

if __name__ == "__main__":
    main()
