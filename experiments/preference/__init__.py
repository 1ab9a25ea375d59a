"""Learning from preferences: DPO, ORPO."""
