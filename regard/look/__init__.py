"""Recording and visualization of attention weights."""
