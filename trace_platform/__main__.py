"""`python -m trace_platform` is `trace`."""

from trace_platform.cli import main

if __name__ == "__main__":
    main()
