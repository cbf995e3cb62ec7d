"""Benchmarks of eqx_fastjit over commits. README.md tells how they are run."""
