"""What tools/bench measures, a module each. `measure(setting)` returns (what was measured, figures)."""
