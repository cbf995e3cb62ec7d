"""What `eqx-fastjit doctor` and `lock` are made of: watch a program, then report.

Nothing here imports JAX before the program that is watched does.
"""
