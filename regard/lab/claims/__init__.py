"""One module per claim, each with its `CLAIM`; regard.lab.registry lists them."""
