"""The entry point of `unstale` and of `python -m unstale`. It imports nothing before it can be interrupted."""


def main() -> None:
    """Run the command line and end this process. Ctrl-C ends it with one line and exit code 130, even in an import.

    A command that ends by itself at Ctrl-C, such as `unstale server`, has a handler of its own. Interrupted code may
    raise another exception than KeyboardInterrupt, as an import that takes it for a missing module does.
    """
    import sys

    interrupted = False

    def interrupt(*_: object) -> None:
        nonlocal interrupted
        interrupted = True
        raise KeyboardInterrupt

    try:
        import signal

        if (
            signal.getsignal(signal.SIGINT) is signal.default_int_handler
        ):  # not where it is ignored, as under nohup
            signal.signal(signal.SIGINT, interrupt)
        from unstale.cli.main import main as run_command_line

        run_command_line()
    except BaseException as error:
        if not (interrupted or isinstance(error, KeyboardInterrupt)):
            raise
        sys.stderr.write("unstale: interrupted\n")
        sys.exit(130)


if __name__ == "__main__":
    main()
