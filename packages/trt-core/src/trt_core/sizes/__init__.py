"""Symbolic sizes: what they are computed by, what they may be, and what a model asks of them.

Read `functions` (the one table of what expressions are made of) and `expressions` (sizes as data) first, then `ranges`
and `profiles` (what sizes may be), `conditions` (what a call's sizes must fulfil), and `guards` with `grid` (how what
PyTorch noted, in memory or as text, becomes conditions).
"""
