//! What only tests use: the simulator, and the suites that hold implementations to their contracts.

pub mod sim;
