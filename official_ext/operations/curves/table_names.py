"""The tables of `official-ext runs query`. The command line reads them at its start, so nothing here imports NumPy."""

TABLES = ('runs', 'params', 'metrics', 'best_metrics')
LISTED = f'{", ".join(TABLES[:-1])} and {TABLES[-1]}'
