"""`python -m innkeeper.cli` is the command `innkeeper`."""

from innkeeper.cli.app import main

if __name__ == "__main__":
    main()
