"""The ``tightfit`` command: ``tightfit`` and ``python -m tightfit`` run the same program."""

import sys

from . import _native


def main() -> int:
    """Runs the command with this process's arguments and returns its exit code; ``tightfit run`` replaces the process."""
    return _native.run_command(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
