//! The encoding of cluster events in `NOTIFY` payloads, which are limited to 8000 bytes of text.
//!
//! ```text
//!   1 00c0ffee00c0ffee P1;4:mail5:eu/42M1;018f…W
//!   │ │                └ events, one after another
//!   │ └ id of the sender
//!   └ version of the encoding
//! ```
//!
//! | letter | followed by | event |
//! |---|---|---|
//! | `P` | organisation `;` type, key | [`ClusterEvent::TaskReady`] |
//! | `M` | organisation `;` run, 32 hex digits | [`ClusterEvent::RunAdvanced`] |
//! | `T` | organisation `;` type | [`ClusterEvent::TypeChanged`] |
//! | `W` | | [`ClusterEvent::PausesChanged`] |
//! | `G` | | [`ClusterEvent::GroupsChanged`] |
//! | `I` | | [`ClusterEvent::InboxWritten`] |
//! | `N` | | [`ClusterEvent::NodesChanged`] |
//! | `X` | | [`ClusterEvent::Missed`] |
//!
//! A type or key is its length in bytes, `:` and the text. A message that cannot be read counts as
//! [`ClusterEvent::Missed`].

use crate::rows::{ClusterEvent, QueueKey};
use kernel::{OrgId, RunId};
use std::collections::BTreeSet;
use std::fmt::Write;

const ENCODING: &str = "1 ";
/// Most bytes of one message.
const MESSAGE_MAX: usize = 7_900;
/// Most bytes of one event; a longer one is sent as [`ClusterEvent::Missed`].
const EVENT_MAX: usize = 2_000;

/// Encodes the events into as few messages as possible.
pub(super) fn write(sender: u64, events: &BTreeSet<ClusterEvent>) -> Vec<String> {
    let head = format!("{ENCODING}{sender:016x} ");
    let mut messages = vec![head.clone()];
    let encoded: BTreeSet<String> = events.iter().map(encode).collect();
    for event in encoded {
        if messages.last().is_some_and(|last| last.len() + event.len() > MESSAGE_MAX) {
            messages.push(head.clone());
        }
        if let Some(last) = messages.last_mut() {
            last.push_str(&event);
        }
    }
    messages
}

fn encode(event: &ClusterEvent) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = match event {
        ClusterEvent::TaskReady(QueueKey { org, name, key }) => {
            write!(text, "P{};{}:{name}{}:{key}", org.0, name.len(), key.len())
        }
        ClusterEvent::RunAdvanced(org, run) => write!(text, "M{};{:032x}", org.0, u128::from_be_bytes(run.0)),
        ClusterEvent::TypeChanged(org, name) => write!(text, "T{};{}:{name}", org.0, name.len()),
        ClusterEvent::PausesChanged => write!(text, "W"),
        ClusterEvent::GroupsChanged => write!(text, "G"),
        ClusterEvent::InboxWritten => write!(text, "I"),
        ClusterEvent::NodesChanged => write!(text, "N"),
        ClusterEvent::Missed => write!(text, "X"),
    };
    // Text in Postgres cannot contain byte 0.
    if text.len() > EVENT_MAX || text.contains('\0') { "X".into() } else { text }
}

/// The sender and the events of a message; `None` if the message cannot be read.
pub(super) fn read(message: &str) -> Option<(u64, Vec<ClusterEvent>)> {
    let (sender, mut rest) = message.strip_prefix(ENCODING)?.split_once(' ')?;
    let sender = u64::from_str_radix(sender, 16).ok()?;
    let mut events = Vec::new();
    while !rest.is_empty() {
        let (letter, after) = rest.split_at_checked(1)?;
        rest = after;
        events.push(match letter {
            "P" => {
                let org = org(&mut rest)?;
                ClusterEvent::TaskReady(QueueKey { org, name: name(&mut rest)?, key: name(&mut rest)? })
            }
            "M" => {
                let org = org(&mut rest)?;
                let (run, after) = rest.split_at_checked(32)?;
                rest = after;
                ClusterEvent::RunAdvanced(org, RunId(u128::from_str_radix(run, 16).ok()?.to_be_bytes()))
            }
            "T" => ClusterEvent::TypeChanged(org(&mut rest)?, name(&mut rest)?),
            "W" => ClusterEvent::PausesChanged,
            "G" => ClusterEvent::GroupsChanged,
            "I" => ClusterEvent::InboxWritten,
            "N" => ClusterEvent::NodesChanged,
            "X" => ClusterEvent::Missed,
            _ => return None,
        });
    }
    Some((sender, events))
}

fn org(rest: &mut &str) -> Option<OrgId> {
    let (number, after) = rest.split_once(';')?;
    *rest = after;
    number.parse().ok().map(OrgId)
}

fn name(rest: &mut &str) -> Option<String> {
    let (length, after) = rest.split_once(':')?;
    let (name, after) = after.split_at_checked(length.parse().ok()?)?;
    *rest = after;
    Some(name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task_ready(name: &str, key: &str) -> ClusterEvent {
        ClusterEvent::TaskReady(QueueKey { org: OrgId(1), name: name.into(), key: key.into() })
    }

    fn all() -> Vec<ClusterEvent> {
        let run = RunId([0x5a; 16]);
        vec![
            task_ready("mail.send", "eu/42"),
            task_ready("mail.send", ""),
            task_ready("5:x", "a;b:c P1; 日本\n\u{1f600}"),
            ClusterEvent::RunAdvanced(OrgId(u32::MAX), run),
            ClusterEvent::TypeChanged(OrgId(7), "mail".into()),
            ClusterEvent::PausesChanged,
            ClusterEvent::GroupsChanged,
            ClusterEvent::InboxWritten,
            ClusterEvent::NodesChanged,
            ClusterEvent::Missed,
        ]
    }

    #[test]
    fn the_encoding_does_not_change() {
        let some = [
            task_ready("mail", "eu/42"),
            ClusterEvent::RunAdvanced(OrgId(1), RunId([0x5a; 16])),
            ClusterEvent::PausesChanged,
        ];
        let expected = format!("1 00c0ffee00c0ffee M1;{}P1;4:mail5:eu/42W", "5a".repeat(16));
        assert_eq!(write(0x00c0_ffee_00c0_ffee, &some.into()), [expected]);
        let rest = [
            ClusterEvent::TypeChanged(OrgId(2), "a.b".into()),
            ClusterEvent::GroupsChanged,
            ClusterEvent::InboxWritten,
            ClusterEvent::NodesChanged,
            ClusterEvent::Missed,
        ];
        assert_eq!(write(1, &rest.into()), ["1 0000000000000001 GINT2;3:a.bX"]);
    }

    #[test]
    fn encoded_events_are_decoded() {
        let sent: BTreeSet<ClusterEvent> = all().into_iter().collect();
        assert_eq!(sent.len(), all().len());
        let messages = write(9, &sent);
        let received: BTreeSet<ClusterEvent> =
            messages.iter().flat_map(|m| read(m).expect("a valid message").1).collect();
        assert_eq!((messages.len(), received), (1, sent));
    }

    #[test]
    fn messages_are_short_and_long_events_become_missed() {
        let many: BTreeSet<ClusterEvent> =
            (0..1_000u128).map(|n| ClusterEvent::RunAdvanced(OrgId(1), RunId(n.to_be_bytes()))).collect();
        let messages = write(9, &many);
        assert!(messages.len() > 3 && messages.iter().all(|message| message.len() < 8_000));
        let received: BTreeSet<ClusterEvent> =
            messages.iter().flat_map(|m| read(m).expect("a valid message").1).collect();
        assert_eq!(received, many);
        for long in [task_ready("mail", &"k".repeat(EVENT_MAX)), task_ready("mail", "a\0b")] {
            assert_eq!(read(&write(9, &BTreeSet::from([long]))[0]), Some((9, vec![ClusterEvent::Missed])));
        }
    }

    #[test]
    fn an_unreadable_message_is_refused() {
        for text in
            ["", "2 09 W", "1 zz W", "1 09", "1 09 Q", "1 09 T1;9:ab", "1 09 M1;5a", "1 09 P;1:a1:b", "1 09 T1;1:日"]
        {
            assert_eq!(read(text), None, "{text}");
        }
        assert_eq!(read("1 09 "), Some((9, vec![])));
    }
}
