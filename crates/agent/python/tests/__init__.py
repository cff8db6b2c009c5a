"""Tests of the hook: `python3 -m unittest discover -s crates/agent/python/tests -t crates/agent/python`."""
