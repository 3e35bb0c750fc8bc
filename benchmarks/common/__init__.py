"""What all benchmarks share: rounds in which contestants take turns, and files that say where numbers come from."""
