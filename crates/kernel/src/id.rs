//! Ids: one type for each kind of thing. An id is 16 bytes, printed as `prefix_` and 26 characters of base32.
//!
//! The bytes are a version 7 UUID, so ids sort by creation time. Time and randomness are arguments.

use crate::time::Timestamp;
use crate::wire::{self, Raw};
use std::cmp::Ordering;
use std::hash::{Hash, Hasher};

/// Crockford's alphabet in lower case, without `i l o u`: ids sort the same as text and as numbers.
const ALPHABET: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";

fn encode(bytes: &[u8; 16]) -> String {
    let n = u128::from_be_bytes(*bytes);
    (0..26).rev().map(|i| ALPHABET[(n >> (i * 5)) as usize & 31] as char).collect()
}

fn decode(text: &str) -> Option<[u8; 16]> {
    // 26 characters hold 130 bits, so the first character may only use three of its five.
    if text.len() != 26 || text.as_bytes()[0] > b'7' {
        return None;
    }
    text.bytes()
        .try_fold(0u128, |n, c| Some(n << 5 | ALPHABET.iter().position(|a| *a == c)? as u128))
        .map(u128::to_be_bytes)
}

/// A version 7 UUID: 48 bits of milliseconds, then `random` with version and variant set.
fn uuid_v7(now: Timestamp, random: [u8; 10]) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..6].copy_from_slice(&(now.millis().max(0) as u64).to_be_bytes()[2..]);
    bytes[6..].copy_from_slice(&random);
    bytes[6] = bytes[6] & 0x0f | 0x70;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    bytes
}

/// The bits of a version 7 UUID without its version and variant, in order: 48 bits of time, 74 random ones.
fn sortable_bits(bytes: [u8; 16]) -> u128 {
    let n = u128::from_be_bytes(bytes);
    n >> 80 << 74 | (n >> 64 & 0xfff) << 62 | n & ((1 << 62) - 1)
}

fn from_sortable_bits(n: u128) -> [u8; 16] {
    (n >> 74 << 80 | 0x7 << 76 | (n >> 62 & 0xfff) << 64 | 0b10 << 62 | n & ((1 << 62) - 1)).to_be_bytes()
}

macro_rules! id {
    ($(#[$meta:meta])* $name:ident, $prefix:literal) => {
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, Default)]
        pub struct $name(pub [u8; 16]);

        impl Ord for $name {
            // Comparing one number is faster than comparing bytes, and maps keyed by ids do little else.
            fn cmp(&self, other: &Self) -> Ordering {
                u128::from_be_bytes(self.0).cmp(&u128::from_be_bytes(other.0))
            }
        }
        impl PartialOrd for $name {
            fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
                Some(self.cmp(other))
            }
        }
        impl Hash for $name {
            // The random half is enough.
            fn hash<H: Hasher>(&self, state: &mut H) {
                state.write_u64(u128::from_be_bytes(self.0) as u64);
            }
        }

        impl $name {
            pub const PREFIX: &'static str = $prefix;

            pub fn new(now: Timestamp, random: [u8; 10]) -> Self {
                $name(uuid_v7(now, random))
            }
            /// Parses the output of `Display`; `None` for anything else.
            /// When the id was made, in milliseconds.
            pub fn made_at(self) -> Timestamp {
                let mut millis = [0; 8];
                millis[2..].copy_from_slice(&self.0[..6]);
                Timestamp::from_millis(i64::from_be_bytes(millis))
            }

            pub fn parse(text: &str) -> Option<Self> {
                decode(text.strip_prefix($prefix)?).map($name)
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, "{}{}", $prefix, encode(&self.0))
            }
        }
        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                std::fmt::Display::fmt(self, f)
            }
        }

        impl wire::Value for $name {
            fn put(&self, number: u32, out: &mut wire::Writer) {
                self.0.put(number, out);
            }
            fn take(raw: Raw<'_>, depth: u32) -> Result<Self, wire::Error> {
                <[u8; 16]>::take(raw, depth).map($name)
            }
        }
    };
}

id!(
    /// A run: one execution of one version of a workflow.
    RunId,
    "run_"
);
id!(
    /// A workflow: a name with immutable versions.
    WorkflowId,
    "wf_"
);
id!(
    /// A trigger: a schedule or a webhook that starts runs.
    TriggerId,
    "trg_"
);
id!(
    /// A row of the inbox: an input that waits until a record of its run consumes it.
    InboxId,
    "inb_"
);

/// The organisation that every row and every request belongs to. A small number, because every row stores it; users
/// see its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OrgId(pub u32);

impl OrgId {
    /// The only organisation of a single-tenant install.
    pub const DEFAULT: OrgId = OrgId(1);
}

impl RunId {
    /// A greater id, as if it had been created right after this one. Work is done in the order of ids, so runs that
    /// are created together are worked on in the order of the request.
    pub fn later(self, step: u32) -> RunId {
        RunId(from_sortable_bits(sortable_bits(self.0) + 1 + u128::from(step)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_reads_back_and_sorts_by_time() {
        let a = RunId::new(Timestamp::from_millis(1_000), [255; 10]);
        let b = RunId::new(Timestamp::from_millis(1_001), [0; 10]);
        assert_eq!(a.made_at(), Timestamp::from_millis(1_000));
        assert_eq!(RunId::parse(&a.to_string()), Some(a));
        assert_eq!(a.to_string().len(), 4 + 26);
        assert!(a < b && a.to_string() < b.to_string());
    }

    #[test]
    fn invalid_ids_are_refused() {
        let good = RunId::new(Timestamp::from_millis(1), [9; 10]).to_string();
        for bad in ["", "run_", "wf_00000000000000000000000000", &good[..29], &good.to_uppercase(), &format!("{good}0")]
        {
            assert_eq!(RunId::parse(bad), None, "{bad}");
        }
        assert_eq!(RunId::parse("run_80000000000000000000000000"), None, "130 bits do not fit");
    }

    #[test]
    fn a_later_id_is_greater_and_valid() {
        let first = RunId::new(Timestamp::from_millis(1_000), [7; 10]);
        assert_eq!(from_sortable_bits(sortable_bits(first.0)), first.0);
        let mut last = first;
        for step in [0, 1, u32::MAX, 0x0fff_ffff, 3] {
            let next = last.later(step);
            assert!(next > last && next.0[..6] == first.0[..6], "{next:?}");
            assert_eq!((next.0[6] >> 4, next.0[8] >> 6), (0x7, 0b10), "version and variant");
            last = next;
        }
        let mut full = [255; 10];
        (full[0], full[2]) = (0x7f, 0xbf);
        let over = RunId::new(Timestamp::from_millis(1_000), full).later(0);
        assert_eq!(over, RunId::new(Timestamp::from_millis(1_001), [0; 10]), "into the next millisecond");
    }
}
