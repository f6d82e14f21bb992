"""The facts and values of the field that everything else speaks in."""
