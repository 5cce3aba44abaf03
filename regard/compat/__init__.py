"""Every private API of other packages that regard uses, one module per library."""
