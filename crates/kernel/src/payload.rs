//! Payloads: trigger bodies, responses, callbacks and progress. The bytes are stored as received and parsed only
//! when a path reads inside. Small payloads are part of their event. Larger ones are rows of their own, numbered per
//! run and read on use.

use bytes::Bytes;
use serde_json::Value;
use std::collections::BTreeMap;

/// Payloads up to this size are part of the journal record itself.
pub const INLINE_MAX: usize = 4 * 1024;

message! {
    pub struct Payload {
        /// The bytes of a small payload.
        1 => inline: Bytes,
        /// The number of the row that has the bytes of a large payload.
        2 => stored: Option<u32>,
        /// Length of the whole payload.
        3 => len: u64,
        /// Not JSON: a path reads one string.
        4 => text: bool,
        /// Truncated at the response limit, so no path can read inside it.
        5 => truncated: bool,
    }
}

impl Payload {
    /// JSON that is known to be well formed.
    pub fn json(bytes: impl Into<Bytes>) -> Payload {
        let inline = bytes.into();
        Payload { len: inline.len() as u64, inline, ..Default::default() }
    }

    /// JSON if the bytes are valid JSON, one string otherwise.
    pub fn sniff(bytes: impl Into<Bytes>) -> Payload {
        let inline: Bytes = bytes.into();
        let text = serde_json::from_slice::<serde::de::IgnoredAny>(&inline).is_err();
        Payload { len: inline.len() as u64, inline, text, ..Default::default() }
    }

    /// The bytes, if they are in memory; `Err` is the number of the row to fetch.
    pub fn bytes<'a>(&'a self, resident: &'a Payloads) -> Result<&'a Bytes, u32> {
        match self.stored {
            None => Ok(&self.inline),
            Some(number) => resident.get(&number).ok_or(number),
        }
    }

    /// The JSON value, if the bytes are in memory; `Err` is the number of the row to fetch.
    pub fn value(&self, resident: &Payloads) -> Result<Value, u32> {
        self.bytes(resident).map(|bytes| self.interpret(bytes))
    }

    /// The JSON value of `bytes`, which are this whole payload.
    pub fn interpret(&self, bytes: &[u8]) -> Value {
        let as_text = || Value::String(String::from_utf8_lossy(bytes).into_owned());
        if self.text || self.truncated {
            as_text()
        } else {
            #[cfg(test)]
            PARSES.set(PARSES.get() + 1);
            serde_json::from_slice(bytes).unwrap_or_else(|_| as_text())
        }
    }
}

/// Stored payloads that are in memory for one advance.
pub type Payloads = BTreeMap<u32, Bytes>;

#[cfg(test)]
thread_local! {
    /// How often this thread has parsed a payload.
    pub static PARSES: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
}
