//! What the environment says: where the server is, and with which key; where the binary is, for tests.

use crate::{Client, Result};
use std::process::Command;

pub const DEFAULT_URL: &str = "http://127.0.0.1:7420";

/// Set and not empty.
pub fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// A process that is started for a test should not take the settings of the one that runs it.
pub fn without_settings(command: &mut Command) {
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("ONWARD_") {
            command.env_remove(name);
        }
    }
}

impl Client {
    /// The server at `ONWARD_URL` (otherwise the one of `onward dev` on this machine), with the key in
    /// `ONWARD_API_KEY` if there is one.
    pub fn from_env() -> Result<Client> {
        let url = variable("ONWARD_URL").unwrap_or_else(|| DEFAULT_URL.to_owned());
        Client::new(&url, variable("ONWARD_API_KEY").as_deref())
    }
}
