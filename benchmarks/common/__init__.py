"""What all benchmarks share: :mod:`.timing`, rounds in which contestants take turns, and :mod:`.provenance`, files that
say where numbers come from."""
