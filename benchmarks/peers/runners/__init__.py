"""How a framework does a work: `measurement(work, **settings) -> protocol.Measurement`, one module for each peer."""
