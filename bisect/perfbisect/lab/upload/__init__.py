"""Files of the controller, brought to a host."""
