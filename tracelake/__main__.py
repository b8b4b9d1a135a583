"""`trace`, which is also `python -m tracelake`."""

import gc
import sys


def main() -> None:
    gc.disable()  # what is imported stays: to look for garbage in it, again and again, takes a fifth of the start
    match sys.argv[1:]:
        case [name, "--settings", "-"]:  # as `trace up` starts its parts: they need no command line
            _part(name)
        case _:
            _command_line()


def _command_line() -> None:
    from tracelake.cli import main as command_line

    gc.freeze()
    gc.enable()
    command_line()


def _part(name: str) -> None:
    from tracelake.errors import TraceError
    from tracelake.runtime.process import PROCESSES
    from tracelake.wiring import run_from_stdin

    if name not in PROCESSES:
        _command_line()  # which says what there is
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
