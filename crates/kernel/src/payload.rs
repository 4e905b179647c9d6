//! Payloads: the bytes people send through a run. They are kept as they came and parsed only when a
//! path looks inside. Small ones travel in the event that brought them; larger ones are rows of their
//! own, named by a number that counts up per run, and are read on use.

use bytes::Bytes;
use serde_json::Value;
use std::collections::BTreeMap;

/// Payloads up to this size stand in the journal record itself.
pub const INLINE_MAX: usize = 4 * 1024;

message! {
    pub struct Payload {
        /// The bytes, when they are here.
        1 => inline: Bytes,
        /// The row that has them, when they are not.
        2 => stored: Option<u32>,
        /// Length of the whole.
        3 => len: u64,
        /// Not JSON: a path sees one string.
        4 => text: bool,
        /// Cut at the response limit, so nothing inside it is readable.
        5 => truncated: bool,
    }
}

impl Payload {
    /// JSON that is known to be well formed.
    pub fn json(bytes: impl Into<Bytes>) -> Payload {
        let inline = bytes.into();
        Payload { len: inline.len() as u64, inline, ..Default::default() }
    }

    /// Whatever came: JSON if it is JSON, one string otherwise.
    pub fn sniff(bytes: impl Into<Bytes>) -> Payload {
        let inline: Bytes = bytes.into();
        let text = serde_json::from_slice::<serde::de::IgnoredAny>(&inline).is_err();
        Payload { len: inline.len() as u64, inline, text, ..Default::default() }
    }

    /// The bytes as they came, if they are at hand; `Err` names the row to fetch.
    pub fn bytes<'a>(&'a self, resident: &'a Payloads) -> Result<&'a Bytes, u32> {
        match self.stored {
            None => Ok(&self.inline),
            Some(number) => resident.get(&number).ok_or(number),
        }
    }

    /// The JSON value, if the bytes are at hand; `Err` names the row to fetch.
    pub fn value(&self, resident: &Payloads) -> Result<Value, u32> {
        self.bytes(resident).map(|bytes| self.interpret(bytes))
    }

    /// What `bytes`, the whole of this payload, mean.
    pub fn interpret(&self, bytes: &[u8]) -> Value {
        let as_text = || Value::String(String::from_utf8_lossy(bytes).into_owned());
        if self.text || self.truncated {
            as_text()
        } else {
            serde_json::from_slice(bytes).unwrap_or_else(|_| as_text())
        }
    }
}

/// Stored payloads that are in memory for one advance.
pub type Payloads = BTreeMap<u32, Bytes>;
