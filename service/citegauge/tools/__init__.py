"""What people run beside the worker, and what the worker shows of itself."""
