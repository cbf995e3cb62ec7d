"""Whole functions, as people write them.

Nobody tunes the engine for any of them. They are written plainly, and their widths are
small, so that most of the time of a call is overhead.
"""
