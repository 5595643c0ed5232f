"""`python -m ffebm` is `ffebm`."""

from __future__ import annotations

import sys

from ffebm.errors import needs_tool


def main() -> None:
    try:
        from ffebm.experiment.command_line import main as command
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("ffebm"):
            raise
        sys.exit(needs_tool("The command `ffebm`", error))
    command()


if __name__ == "__main__":
    main()
