"""What is measured, and by what: each module is a command, `python -m benchmarks.<name>`."""
