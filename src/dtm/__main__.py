"""``python -m dtm``: the command where no script is installed, and how the runs of a sweep are started."""

import sys

from dtm.cli import main

sys.exit(main())
