"""An example of a plug-in for flumeng: one component of each kind."""
