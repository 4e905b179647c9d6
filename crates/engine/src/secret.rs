//! The installation's secret, from which callback tokens are derived, and the secret that signs outgoing requests,
//! which the receivers share.
//!
//! A token is HMAC-SHA256(secret, run id ‖ step key). So it exists as soon as its run does, and cannot be forged
//! without the secret. The store keeps only its SHA-256.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, KeyInit, Mac};
use kernel::RunId;
use sha2::{Digest, Sha256};
use std::io::{self, Write};
use std::path::Path;
use store::crash::{self, Point};

#[derive(Clone)]
pub struct Secret([u8; 32]);

impl Secret {
    pub fn new(bytes: [u8; 32]) -> Secret {
        Secret(bytes)
    }

    /// Reads the key file. Creates one that only its owner can read if there is none.
    pub fn open(path: &Path) -> io::Result<Secret> {
        match std::fs::read(path) {
            Ok(bytes) => {
                check_private(path)?;
                let bytes = bytes.try_into().map_err(|_| invalid(path, "must hold exactly 32 bytes"))?;
                Ok(Secret(bytes))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Secret::create(path),
            Err(error) => Err(error),
        }
    }

    fn create(path: &Path) -> io::Result<Secret> {
        use std::os::unix::fs::OpenOptionsExt;
        let mut bytes = [0; 32];
        getrandom::fill(&mut bytes).map_err(|e| io::Error::other(e.to_string()))?;
        // Write a temporary file and rename it: a crash must not leave half a key that tokens were derived from.
        let aside = path.with_extension("key.new");
        let mut file = std::fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&aside)?;
        file.write_all(&bytes)?;
        file.sync_all()?;
        crash::point(Point::KeyAside);
        std::fs::rename(&aside, path)?;
        if let Some(folder) = path.parent() {
            std::fs::File::open(folder)?.sync_all()?;
        }
        Ok(Secret(bytes))
    }

    /// Lets two processes check that they have the same secret, without revealing it.
    pub fn fingerprint(&self) -> String {
        // No run has this id.
        self.token(RunId([0; 16]), "fingerprint")
    }

    /// The callback token of a step.
    pub fn token(&self, run: RunId, step: &str) -> String {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).expect("HMAC takes a key of any length");
        mac.update(&run.0);
        mac.update(step.as_bytes());
        URL_SAFE_NO_PAD.encode(mac.finalize().into_bytes())
    }
}

/// Names an approval in logs and links. Knowing it authorises nothing.
pub fn approval_token(run: RunId, step: &str) -> String {
    // A step asks for an approval in its only attempt.
    Sha256::digest(format!("{run}:{step}:1")).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Signs outgoing requests, so that receivers can verify the sender.
#[derive(Clone)]
pub struct Signer(Vec<u8>);

/// A longer file is not a signing secret.
const SIGNING_SECRET_MAX: usize = 4_096;

impl Signer {
    /// Reads the secret from a file, without a line break that an editor added at the end.
    pub fn open(path: &Path) -> io::Result<Signer> {
        let mut bytes = std::fs::read(path)?;
        if bytes.last() == Some(&b'\n') {
            bytes.pop();
            if bytes.last() == Some(&b'\r') {
                bytes.pop();
            }
        }
        match bytes.len() {
            0 => Err(invalid(path, "is empty; a signature with an empty secret proves nothing")),
            1..=SIGNING_SECRET_MAX => Ok(Signer(bytes)),
            _ => Err(invalid(path, "has more than 4,096 bytes")),
        }
    }

    /// The value of a signature header: `sha256=` and the HMAC-SHA256 of the bytes, in hex.
    pub fn sign(&self, bytes: &[u8]) -> String {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).expect("HMAC takes a key of any length");
        mac.update(bytes);
        mac.finalize().into_bytes().iter().fold("sha256=".to_owned(), |text, byte| format!("{text}{byte:02x}"))
    }
}

/// A random name, unique in practice.
pub fn random_name() -> io::Result<String> {
    let mut bytes = [0; 10];
    getrandom::fill(&mut bytes).map_err(|e| io::Error::other(e.to_string()))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// The hash of a token that the store keeps.
pub fn token_hash(token: &str) -> [u8; 32] {
    Sha256::digest(token.as_bytes()).into()
}

fn check_private(path: &Path) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    let mode = std::fs::metadata(path)?.permissions().mode();
    if mode & 0o077 != 0 {
        return Err(invalid(path, "is readable by others than its owner; run `chmod 600` on it"));
    }
    Ok(())
}

fn invalid(path: &Path, what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the key file {} {what}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn t14_tokens_are_stable_distinct_and_long() {
        let secret = Secret::new([7; 32]);
        let token = secret.token(RunId([1; 16]), "pay");
        assert_eq!(token, secret.token(RunId([1; 16]), "pay"));
        assert_eq!(token.len(), 43, "256 bits");
        let many: HashSet<String> = (0..10_000u32)
            .map(|i| {
                let mut id = [0; 16];
                id[..4].copy_from_slice(&i.to_be_bytes());
                secret.token(RunId(id), "pay")
            })
            .collect();
        assert_eq!(many.len(), 10_000);
        assert_ne!(token, Secret::new([8; 32]).token(RunId([1; 16]), "pay"));
    }

    #[test]
    fn a_signature_is_hmac_sha256_in_hex() {
        let signer = Signer(b"key".to_vec());
        let vector = "sha256=02afb56304902c656fcb737cdd03de6205bb6d401da2812efd9b2d36a08af159";
        assert_eq!(signer.sign(b"test"), vector);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("signing");
        for content in ["key", "key\n", "key\r\n"] {
            std::fs::write(&path, content).unwrap();
            assert_eq!(Signer::open(&path).unwrap().sign(b"test"), vector, "{content:?}");
        }
        for content in ["", "\n", &"x".repeat(5_000)] {
            std::fs::write(&path, content).unwrap();
            assert!(Signer::open(&path).is_err());
        }
    }

    #[test]
    fn a_key_file_is_created_once_and_must_be_private() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("secret.key");
        let first = Secret::open(&path).unwrap().token(RunId([1; 16]), "a");
        assert_eq!(Secret::open(&path).unwrap().token(RunId([1; 16]), "a"), first);
        use std::os::unix::fs::PermissionsExt;
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
        assert!(Secret::open(&path).is_err());
    }
}
