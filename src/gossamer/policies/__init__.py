"""Networks: torsos chosen by observation shape, heads read from the action space."""
