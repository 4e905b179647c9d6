//! Environment variables: `ONWARD_URL`, `ONWARD_API_KEY`, and `ONWARD_BINARY` for tests.

use crate::{Client, Result};
use std::process::Command;

pub const DEFAULT_URL: &str = "http://127.0.0.1:7420";

/// The value of an environment variable, if it is set and not empty.
pub fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// Removes every `ONWARD_` variable, so that a server started by a test does not inherit settings of the developer.
pub fn without_settings(command: &mut Command) {
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("ONWARD_") {
            command.env_remove(name);
        }
    }
}

impl Client {
    /// A client of the server at `ONWARD_URL` (by default `onward dev` on this machine), with the key in
    /// `ONWARD_API_KEY` if it is set.
    pub fn from_env() -> Result<Client> {
        let url = variable("ONWARD_URL").unwrap_or_else(|| DEFAULT_URL.to_owned());
        Client::new(&url, variable("ONWARD_API_KEY").as_deref())
    }
}
