//! The worker's program; see the library.

fn main() {}
