"""``python -m fl_sim`` is the ``fl-sim`` command."""

import sys

from fl_sim.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
