"""Every sentence, number and table that people read."""
