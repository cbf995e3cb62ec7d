"""Which rule that is: a file for each class of rules."""
