"""The classes of rules, in the order in which they are asked.

What spares whole compilations comes before what saves a part of them.
"""

from . import each_call, each_run, functions, outside_of_jit, within_program, wrong


CLASSES = (wrong, functions, each_call, outside_of_jit, within_program, each_run)

# All rules by their names.
RULES = {rule.name: rule for rules in CLASSES for rule in rules.RULES}
