"""`python -m tracelake` is `trace`."""

import sys


def main() -> None:
    match sys.argv[1:]:
        case [name, "--settings", "-"]:  # as `trace up` starts its parts: they need no command line
            _part(name)
        case _:
            from tracelake.cli import main as command_line

            command_line()


def _part(name: str) -> None:
    from tracelake.errors import TraceError
    from tracelake.runtime.process import PROCESSES
    from tracelake.wiring import run_from_stdin

    if name not in PROCESSES:
        from tracelake.cli import main as command_line

        command_line()  # which says what there is
    try:
        run_from_stdin(name)
    except TraceError as refusal:
        from tracelake.cli import printing

        printing.refuse(refusal, in_json=False)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
