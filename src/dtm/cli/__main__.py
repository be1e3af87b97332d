"""``python -m dtm.cli``: how runs of a sweep are started."""

import sys

from dtm.cli import main

sys.exit(main())
