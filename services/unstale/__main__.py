"""`python -m unstale` is the same as `unstale`."""

from unstale.cli.main import main

if __name__ == "__main__":
    main()
