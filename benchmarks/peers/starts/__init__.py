"""Programs that start, take one step and say when: a line of JSON for each mark, `{"mark": ..., "time": seconds}`."""
