"""``python -m dtm``: run the command line without the installed script; a sweep starts its runs this way."""

import sys

from dtm.cli import main

sys.exit(main())
