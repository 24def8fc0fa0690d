"""The planner: a pure function from a snapshot to actions. Two laws are tested as properties:
planning after applying yields no action, and every prefix of the actions leaves a legal state.
Plans come before the assignments that are derived from them."""
