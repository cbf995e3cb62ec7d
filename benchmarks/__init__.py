"""Benchmarks of eqx_fastjit over commits, and tools around them; see README.md.

asv imports all modules here, also beside old commits of the package: import the package
in functions.
"""
