//! The command line `eliza-inference`: a thin client of the session room.

fn main() {}
