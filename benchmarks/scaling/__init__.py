"""How training grows with devices: measured on one machine, and computed for many."""
