"""What people see: the terminal, `metrics.jsonl` and other trackers, the report, the doctor."""
