//! For tests: a server on a free port, with data that is deleted afterwards.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let server = onward_client::testing::Server::start()?;
//! let client = server.client();
//! # Ok(()) }
//! ```

use crate::environment::{variable, without_settings};
use crate::{Client, Error, Result};
use std::hash::{BuildHasher, RandomState};
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

/// Longer than any machine needs to start a server.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// A running server. Dropping it stops the server and deletes its data.
pub struct Server {
    child: Child,
    client: Client,
    binary: PathBuf,
    flags: Vec<String>,
    data: Folder,
}

/// A folder that is deleted on drop.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

impl Server {
    /// Starts the binary at `ONWARD_BINARY`, or the first `onward` on the path.
    pub fn start() -> Result<Server> {
        Server::with(&[])
    }

    /// Starts it with further flags of `onward dev`, such as `--clock virtual`.
    pub fn with(flags: &[&str]) -> Result<Server> {
        let binary = variable("ONWARD_BINARY").unwrap_or_else(|| "onward".to_owned());
        Server::of(Path::new(&binary), flags)
    }

    /// Starts this binary.
    pub fn of(binary: &Path, flags: &[&str]) -> Result<Server> {
        let name = format!("onward-test-{}-{:016x}", std::process::id(), RandomState::new().hash_one(flags.len()));
        let data = Folder(std::env::temp_dir().join(name));
        let flags: Vec<String> = flags.iter().map(|flag| (*flag).to_owned()).collect();
        let (child, url) = spawn(binary, &data.0, &flags, "127.0.0.1:0")?;
        Ok(Server { child, client: Client::new(&url, None)?, binary: binary.to_owned(), flags, data })
    }

    pub fn client(&self) -> Client {
        self.client.clone()
    }

    pub fn url(&self) -> &str {
        self.client.base()
    }

    /// Kills the server without warning, like a power failure.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Kills the server and starts it again on the same data, at the same address.
    pub fn restart(&mut self) -> Result<()> {
        self.kill();
        let address = self.client.base().trim_start_matches("http://").to_owned();
        (self.child, _) = spawn(&self.binary, &self.data.0, &self.flags, &address)?;
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Starts a server and waits until it prints its address.
fn spawn(binary: &Path, data: &Path, flags: &[String], listen: &str) -> Result<(Child, String)> {
    let mut command = Command::new(binary);
    without_settings(&mut command);
    command.args(["dev", "--listen", listen, "--data"]).arg(data).args(flags);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|e| {
        let hint = "set `ONWARD_BINARY` to the path of the binary";
        Error::Unusable(format!("cannot start `{}`: {e}; {hint}", binary.display()))
    })?;
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let (send, ready) = mpsc::channel();
    std::thread::spawn(move || stdout.map(|out| lines(out).for_each(|line| _ = send.send(line))));
    // Read to the end: a full pipe would block the server.
    let last_line = std::thread::spawn(move || stderr.and_then(|err| lines(err).last()).unwrap_or_default());
    match ready.recv_timeout(START_TIMEOUT) {
        Ok(line) if line.starts_with("onward ready ") => Ok((child, line["onward ready ".len()..].to_owned())),
        _ => {
            let _ = child.kill();
            let _ = child.wait();
            Err(Error::Unusable(format!("the server did not start: {}", last_line.join().unwrap_or_default())))
        }
    }
}

fn lines(from: impl Read) -> impl Iterator<Item = String> {
    BufReader::new(from).lines().map_while(std::result::Result::ok)
}
