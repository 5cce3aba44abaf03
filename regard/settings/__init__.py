"""Settings: dataclasses as command-line options, YAML and JSON."""
