//! What engine, supervisor, init and the confined process tell each other: one JSON value behind its length, over the
//! socket that is standard input of the process below. The end of that stream says that the process above is gone, or
//! wants no more.

use crate::command::{FileAccess, NetworkAccess, ResourceLimits};
use crate::finished::EndReason;
use crate::isolation::Containment;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::io::{Read, Result, Write};
use std::path::PathBuf;

/// Everything a command needs. Its standard input follows as plain bytes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Orders {
    pub command: String,
    pub env: Vec<(String, String)>,
    pub stdin_bytes: usize,
    pub timeout_ms: u64,
    pub folder: Option<PathBuf>,
    pub files: FileAccess,
    pub network: NetworkAccess,
    pub limits: ResourceLimits,
    pub contain: Containment,
    /// Where private folders are.
    pub scratch: PathBuf,
    pub protected: Vec<PathBuf>,
    pub readable: Vec<PathBuf>,
    /// Filled in by the supervisor.
    pub placed: Option<Placed>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Placed {
    pub cwd: PathBuf,
    pub tmp: PathBuf,
    /// The user to become, and the group of the same number.
    pub user: Option<u32>,
    /// For `RLIMIT_NPROC`.
    pub processes_max: Option<u64>,
}

/// From a process to the one above.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StageReport {
    /// Something could not be set up, and bash was not started.
    Refused { what: Setup, why: String },
    /// From init: how bash ended.
    Status { exit_code: Option<i32>, signal: Option<i32> },
    /// From the supervisor: all processes of the command are dead.
    Ended { ended: EndReason, exit_code: Option<i32>, signal: Option<i32>, duration_ms: u64, cwd: PathBuf },
    /// From the supervisor: the private folder is deleted, or why not.
    Cleaned { problem: Option<String> },
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Setup {
    Sandbox,
    Folder(PathBuf),
}

/// No message is longer: a command, its environment and some paths.
const MESSAGE_BYTES_MAX: u32 = 16 << 20;

pub fn encode<T: Serialize>(value: &T) -> Result<Vec<u8>> {
    let mut bytes = vec![0; 4];
    serde_json::to_writer(&mut bytes, value)?;
    let length = bytes.len() as u32 - 4;
    bytes[..4].copy_from_slice(&length.to_be_bytes());
    Ok(bytes)
}

pub fn send<T: Serialize>(mut to: impl Write, value: &T) -> Result<()> {
    to.write_all(&encode(value)?)
}

/// `None` at the end of the stream.
pub fn receive<T: DeserializeOwned>(mut from: impl Read) -> Result<Option<T>> {
    let mut length = [0; 4];
    match from.read_exact(&mut length) {
        Ok(()) => {}
        Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => return Ok(None),
        Err(error) => return Err(error),
    }
    let length = u32::from_be_bytes(length);
    if length > MESSAGE_BYTES_MAX {
        return Err(std::io::Error::other("a message is too long"));
    }
    let mut bytes = vec![0; length as usize];
    from.read_exact(&mut bytes)?;
    Ok(Some(serde_json::from_slice(&bytes)?))
}
