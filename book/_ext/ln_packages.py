"""The packages of this project, for extensions and tests alike."""

PACKAGES = "lnlib", "normcheck", "simt", "lnbook"
