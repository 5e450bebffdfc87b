//! Graph and backends to plan: assign, split, allocate by liveness.
