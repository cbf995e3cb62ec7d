"""`python -m eqx_fastjit`: the command where its script is not on the path."""

import sys

from .cli import main


sys.exit(main())
