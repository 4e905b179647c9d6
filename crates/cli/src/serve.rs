//! `onward serve`: the server for other machines. It may listen on any address, and every request needs the admin key.
//!
//! The key is `ONWARD_ADMIN_KEY`. Without that variable, the first start makes a key and prints it once. The data
//! folder keeps only its SHA-256, so the key stays valid after a restart and cannot be read back.

use crate::bash_steps;
use crate::exit;
use crate::node::{self, AccessMode, ClockArguments, Config, Failure};
use server::KeyHash;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::ExitCode;

#[derive(clap::Args)]
pub struct Arguments {
    #[command(flatten)]
    node: node::Flags,
    #[command(flatten)]
    bash: bash_steps::ServeFlags,
}

/// A shorter key could be guessed.
const KEY_MIN: usize = 16;
const KEY_MAX: usize = 256;

pub fn run(arguments: Arguments) -> ExitCode {
    let given = std::env::var("ONWARD_ADMIN_KEY").ok();
    if let Some(Err(message)) = given.as_deref().map(check) {
        eprintln!("error: {message}");
        return exit::USAGE.into();
    }
    node::run(config(arguments), |data| match given {
        Some(key) => Ok(AccessMode::Key(KeyHash::of(&key))),
        None => stored_key(data).map(AccessMode::Key),
    })
}

fn config(arguments: Arguments) -> Result<Config, String> {
    let bash = bash_steps::of_serve(arguments.bash)?;
    node::check(arguments.node, ClockArguments::REAL, bash)
}

/// Checks that a key is long enough and can be sent in a header.
fn check(key: &str) -> Result<(), String> {
    if !key.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err("`ONWARD_ADMIN_KEY` may hold only visible ASCII characters, and no spaces".into());
    }
    match key.len() {
        KEY_MIN..=KEY_MAX => Ok(()),
        length => Err(format!("`ONWARD_ADMIN_KEY` has {length} characters, expected {KEY_MIN} to {KEY_MAX}")),
    }
}

/// The key of this data folder. If there is none yet, makes one, stores its hash and prints it.
fn stored_key(data: &Path) -> Result<KeyHash, Failure> {
    let path = data.join("admin.key");
    let failed =
        |what: &str, why: &dyn std::fmt::Display| (exit::INPUT_OUTPUT, format!("{what} {}: {why}", path.display()));
    match std::fs::read_to_string(&path) {
        Ok(text) => read(&text).ok_or_else(|| failed("cannot use", &"it does not hold the SHA-256 of a key")),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let key = random_key().map_err(|e| failed("cannot make a key for", &e))?;
            let hash = KeyHash::of(&key);
            write(&path, &hash).map_err(|e| failed("cannot write", &e))?;
            eprintln!(
                "admin key: {key}\nIt is shown only once. For a new key, remove {} and start again.",
                path.display()
            );
            Ok(hash)
        }
        Err(error) => Err(failed("cannot read", &error)),
    }
}

/// 32 random bytes, in hex.
fn random_key() -> Result<String, getrandom::Error> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes)?;
    Ok(format!("sk_{}", hex(&bytes)))
}

/// Writes a new file and renames it, so that a crash leaves the whole hash or none.
fn write(path: &Path, hash: &KeyHash) -> std::io::Result<()> {
    let aside = path.with_extension("key.new");
    let mut file = std::fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&aside)?;
    writeln!(file, "sha256:{}", hex(&hash.0))?;
    file.sync_all()?;
    std::fs::rename(&aside, path)?;
    std::fs::File::open(path.parent().unwrap_or(Path::new(".")))?.sync_all()
}

fn read(text: &str) -> Option<KeyHash> {
    let digits = text.trim_end().strip_prefix("sha256:")?;
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    let bytes: Option<Vec<u8>> = digits.as_bytes().chunks(2).map(byte).collect();
    Some(KeyHash(bytes?.try_into().ok()?))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stored_key_hash_is_read_again() {
        let hash = KeyHash::of(&random_key().unwrap());
        assert_eq!(read(&format!("sha256:{}\n", hex(&hash.0))), Some(hash));
        for bad in ["", "sha256:", "sha256:00", "sk_00", &format!("sha256:{}0", hex(&hash.0))] {
            assert_eq!(read(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_key_is_long_enough_and_fits_a_header() {
        assert_eq!(check(&random_key().unwrap()), Ok(()));
        for bad in ["", "short", "with a space in it", "über-geheimer-schlüssel", &"x".repeat(257)] {
            assert!(check(bad).is_err(), "{bad}");
        }
    }
}
