"""`python -m citegauge`."""

from citegauge.cli import main

main()
