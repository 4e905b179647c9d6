//! What the environment says: where the server is, and with which key; where the binary is, for tests.

use crate::{Client, Result};

pub const DEFAULT_URL: &str = "http://127.0.0.1:7420";

/// Set and not empty.
pub fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

impl Client {
    /// The server at `ONWARD_URL` (otherwise the one of `onward dev` on this machine), with the key in
    /// `ONWARD_API_KEY` if there is one.
    pub fn from_env() -> Result<Client> {
        let url = variable("ONWARD_URL").unwrap_or_else(|| DEFAULT_URL.to_owned());
        Client::new(&url, variable("ONWARD_API_KEY").as_deref())
    }
}
