"""`python -m choral` is the command `choral`."""

import sys

from choral.cli.main import main

sys.exit(main())
