"""What several test files share: servers to start and helpers to talk to them. No tests."""
