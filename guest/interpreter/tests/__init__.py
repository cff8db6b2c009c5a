"""Tests of the code interpreter: `python3 -m unittest discover -s guest/interpreter/tests -t guest/interpreter`."""
