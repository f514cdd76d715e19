"""The entry point of `unstale` and of `python -m unstale`. Imports nothing before it handles Ctrl-C."""


def main() -> None:
    """Run the command line and exit. Ctrl-C exits with one line and code 130, even during an import.

    Commands that shut down at Ctrl-C, such as `unstale server`, have their own handler. Interrupted code may raise
    another exception than KeyboardInterrupt, such as an import that reports a missing module.
    """
    import sys

    interrupted = False

    def interrupt(*_: object) -> None:
        nonlocal interrupted
        interrupted = True
        raise KeyboardInterrupt

    try:
        import signal

        # Not if SIGINT is ignored, as under nohup.
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, interrupt)
        from unstale.imports import imports

        if sys.argv[1:2] == ["demo"] and not {"-h", "--help", "--help-all"} & {*sys.argv}:
            from unstale.cli import demo_processes

            demo_processes.prepare()  # imports PyTorch while this process imports the command line

        with imports():
            from unstale.cli.main import main as run_command_line

        run_command_line()
    except BaseException as error:
        if not (interrupted or isinstance(error, KeyboardInterrupt)):
            raise
        sys.stderr.write("unstale: interrupted\n")
        sys.exit(130)


if __name__ == "__main__":
    main()
