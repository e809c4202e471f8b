"""Pure tensor maths: no state, no logging, no config."""
