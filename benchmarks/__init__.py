"""Benchmarks of eqx_fastjit over commits, and tools around them; see README.md.

asv imports all modules here, also with old commits of the package. Import the package
inside functions.
"""
