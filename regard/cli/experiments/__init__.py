"""Commands on several runs: comparison, sweeps over settings."""
