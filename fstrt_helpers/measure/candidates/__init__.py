"""Everything that is compared: upstream's own code, and ours on every back end, behind one small interface."""
