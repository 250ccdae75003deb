"""The core: join, score, panes and windows as pure, synchronous code that is told the time."""
