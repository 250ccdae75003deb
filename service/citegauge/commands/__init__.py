"""Commands that are too long for `cli.py`, one a file; `options` is what several share."""
