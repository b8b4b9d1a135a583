"""`python -m trace_platform` is `trace`."""

import sys


def main() -> None:
    match sys.argv[1:]:
        case [name, "--settings", "-"]:  # as `trace up` starts its parts: they need no command line
            _part(name)
        case _:
            from trace_platform.cli import main as command_line

            command_line()


def _part(name: str) -> None:
    from trace_platform.errors import TraceError
    from trace_platform.part import run_as_told
    from trace_platform.process import PROCESSES

    if name not in PROCESSES:
        from trace_platform.cli import main as command_line

        command_line()  # which says what there is
    try:
        run_as_told(name)
    except TraceError as refusal:
        from trace_platform.cli import say

        say.refuse(refusal, in_json=False)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
