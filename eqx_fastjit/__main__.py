"""`python -m eqx_fastjit`: the command where its script is not on the path."""

from .cli import main


raise SystemExit(main())
